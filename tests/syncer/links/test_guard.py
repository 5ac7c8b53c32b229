"""Who may connect as what, and what may be said over such a connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from zmq.utils import z85

from swift_diloco.core.files.key_files import KeyPair
from swift_diloco.core.formats.messages import Heartbeat
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminRequest
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.tools.keygen.cli import make_pairs, new_pair
from syncer.links.guard import Guard, KeyRing, PeerRole, load_ring
from syncer.links.refusals import Gate

SERVER, ISLAND, ADMIN, BOTH, STRANGER = (new_pair() for _ in range(5))
RING = KeyRing(SERVER, frozenset([ISLAND.public, BOTH.public]), frozenset([ADMIN.public, BOTH.public]))
ORDER = AdminRequest("n", "token", AdminCommand.STOP)
BEAT = Heartbeat("s", "g", 1)


def question(pair: KeyPair) -> list[bytes]:
    """What ZeroMQ asks about a connection."""
    key = z85.decode(pair.public.encode())
    return [b"1.0", b"7", b"swift-diloco", b"10.0.0.9", b"", b"CURVE", key]


@pytest.mark.parametrize(
    ("pair", "role"),
    [
        (ISLAND, PeerRole.ISLAND),
        (ADMIN, PeerRole.ADMIN),
        (BOTH, PeerRole.ISLAND | PeerRole.ADMIN),
        (STRANGER, PeerRole.NOBODY),
        (SERVER, PeerRole.NOBODY),
    ],
)
def test_a_key_has_the_roles_of_the_lists_it_is_in(pair: KeyPair, role: PeerRole) -> None:
    assert RING.role(pair.public) == role
    guard = Guard(RING)
    answer = guard._answer(question(pair))
    if role:
        assert answer == [b"1.0", b"7", b"200", b"OK", pair.public.encode(), b""]
    else:
        assert answer == [b"1.0", b"7", b"400", b"this key is not allowed", b"", b""]
    assert guard.refused == (not role)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"1.0"],
        question(ISLAND)[:-1],
        [*question(ISLAND)[:-1], b"short"],
        [*question(ISLAND)[:5], b"NULL"],
        [*question(ISLAND)[:5], b"PLAIN", b"user", b"password"],
        [b"2.0", *question(ISLAND)[1:]],
    ],
)
def test_any_other_question_is_answered_with_no(parts: list[bytes]) -> None:
    assert Guard(RING)._answer(parts)[2] == b"400"


def test_a_key_that_keeps_knocking_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(RING)
    for _ in range(3):
        guard._answer(question(STRANGER))
    assert [STRANGER.public in record.getMessage() for record in caplog.records] == [True]
    assert guard.refused == 3


def test_with_keys_orders_need_an_admin_key_and_an_admin_is_no_island() -> None:
    gate = Gate("token", guarded=True)
    assert gate.refusal(PeerRole.ADMIN, ORDER) is None
    assert gate.refusal(PeerRole.ISLAND, ORDER) == "orders need a key that is among --admin-keys"
    assert gate.refusal(PeerRole.ISLAND, BEAT) is None
    assert gate.refusal(PeerRole.ADMIN, BEAT) == "this key gives orders; it is no island's"


@pytest.mark.parametrize(("token", "taken"), [("token", True), ("", False), ("tokem", False)])
def test_without_keys_orders_need_the_run_folders_token(token: str, taken: bool) -> None:
    assert (Gate(token).refusal(PeerRole.ISLAND, ORDER) is None) == taken


def test_a_folder_of_all_public_keys_makes_islands_of_neither_syncer_nor_admin(tmp_path: Path) -> None:
    make_pairs(tmp_path, ("syncer", "admin", "island-0", "island-1"))
    ring = load_ring(
        SyncerSettings(
            curve_key=str(tmp_path / "syncer.key"), curve_allow=str(tmp_path), admin_keys=str(tmp_path / "admin.pub")
        )
    )
    assert ring is not None and len(ring.islands) == 2 and len(ring.admins) == 1
    assert not ring.islands & (ring.admins | {ring.own.public})
