"""The bytes of every message, pinned; and what is refused, with words that help the peer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from swift_diloco.core.errors import PeerError
from swift_diloco.core.formats import frames, operator_messages
from swift_diloco.core.formats import messages as m
from swift_diloco.core.formats.frames import WireError, decode_from_island, decode_from_syncer, encode
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import TensorSpec, make_layout

GOLDEN = Path(__file__).parent / "golden_frames.json"
"""Hex of the header of each message below. A change of these bytes needs another WIRE_VERSION, or a new field with
a default that an older peer does not miss."""

VALUE = m.ValueName(1, 2, "d1")
LAYOUT = make_layout([TensorSpec("a.weight", (2, 3), "rda"), TensorSpec("embedding.weight", (4,), "avg")])
PLAN = FragmentPlan(((0,), (1,)))
CONTRACT = m.Contract(24, "blend", 0.5, "f32", "bf16", 120.0, 2, True)

FROM_ISLAND: list[m.IslandMessage] = [
    m.Hello(1, "nonce", LAYOUT.fingerprint, "host", 77, "instance", 5, 2, LAYOUT, True),
    m.RankHello("s", "g", "token", 3, (Box(0, (0, 1), (2, 2)), Box(1, (0,), (4,)))),
    m.Heartbeat("s", "g", 9),
    m.PushOffer("s", "g", "g.1", 4, 1, VALUE, 24, 1000, 48),
    m.Chunk("s", "g", "g.1", 3, 7, 2**64 - 1),
    m.Fetch("s", "g", 3, VALUE, 0, 16, True),
    m.Fetched("s", "g", 3, VALUE),
    m.Done("s", "g", 100),
    m.CutInstalled("s", "g"),
    m.Saved("s", "g"),
    m.Leave("s", "g", "why"),
    operator_messages.AdminRequest("nonce", "token", operator_messages.AdminCommand.SET, 1, (("quorum", "2"),), "why"),
]
FROM_SYNCER: list[m.SyncerMessage] = [
    m.LayoutWanted("s", "nonce"),
    m.Welcome("s", "g", "nonce", "token", "run", CONTRACT, PLAN, (VALUE,), (VALUE,), (1, 2)),
    m.Refused("s", "nonce", "why", True),
    m.RankWelcome("s", "g", 3, (VALUE,)),
    m.Joined("s", "g"),
    m.InitWanted("s", "g", ("u0", "u1")),
    m.Pull("s", "g", 4, 1, 2),
    m.PullClosed("s", "g", 4, 1),
    m.PushAnswer("s", "g", "g.1", m.Outcome.CARRIED, "late"),
    m.Dropped("s", "g", "g.1", "why"),
    m.Published("s", "g", VALUE, "run"),
    m.Window("s", "g", "g.1", 1, 0, 16),
    m.Cancel("s", "g", "g.1", "why"),
    m.Piece("s", "g", VALUE, 7, 2**64 - 1, True),
    m.Superseded("s", "g", VALUE, m.ValueName(1, 3, "d2")),
    m.Paused("s", "g", "why", 1),
    m.PauseOver("s", "g"),
    m.HeartbeatReply("s", "g", 2, "island 1", 1, "why"),
    m.Unknown("s", "g", "why"),
    m.Command("s", "g", operator_messages.Order.SAVE_AND_STOP, "why"),
    m.BudgetReached("s", "g", 10),
    m.FinalCut("s", "g", (VALUE,)),
    m.Stopping("s", "g", "why"),
    operator_messages.AdminReply("s", "nonce", True, "text", "{}"),
]


def payload_of(message: object) -> bytes | None:
    return b"payload" if isinstance(message, m.Chunk | m.Piece) else None


def kind(message: m.IslandMessage | m.SyncerMessage) -> str:
    """Its name on the wire."""
    return str(message.__struct_config__.tag)


def test_every_message_is_in_the_lists() -> None:
    assert [type(each) for each in FROM_ISLAND] == list(get_args(m.IslandMessage))
    assert [type(each) for each in FROM_SYNCER] == list(get_args(m.SyncerMessage))


def test_preamble_is_pinned() -> None:
    assert frames.PREAMBLE == b"SDLC\x00\x01"


@pytest.mark.parametrize("message", [*FROM_ISLAND, *FROM_SYNCER], ids=kind)
def test_header_has_its_golden_bytes(message: m.IslandMessage | m.SyncerMessage) -> None:
    golden = json.loads(GOLDEN.read_text())
    parts = encode(message, payload_of(message))
    assert parts[0] == frames.PREAMBLE
    assert bytes(parts[1]).hex() == golden[kind(message)]
    assert parts[2:] == ([b"payload"] if payload_of(message) else [])


def test_an_order_that_came_later_has_its_golden_bytes_under_the_same_version() -> None:
    request = operator_messages.AdminRequest("nonce", "token", operator_messages.AdminCommand.STORY)
    assert bytes(encode(request)[1]).hex() == json.loads(GOLDEN.read_text())["AdminRequest STORY"]
    assert decode_from_island(encode(request)) == (request, None)


@pytest.mark.parametrize("message", FROM_ISLAND, ids=kind)
def test_islands_message_survives_the_wire_and_is_refused_from_a_syncer(message: m.IslandMessage) -> None:
    parts = encode(message, payload_of(message))
    assert decode_from_island(parts) == (message, payload_of(message))
    with pytest.raises(WireError, match="not a message from a syncer"):
        decode_from_syncer(parts)


@pytest.mark.parametrize("message", FROM_SYNCER, ids=kind)
def test_syncers_message_survives_the_wire_and_is_refused_from_an_island(message: m.SyncerMessage) -> None:
    parts = [memoryview(part) for part in encode(message, payload_of(message))]
    assert decode_from_syncer(parts) == (message, payload_of(message))
    with pytest.raises(WireError, match="not a message from an island"):
        decode_from_island(parts)


HEARTBEAT = encode(m.Heartbeat("s", "g", 1))
CHUNK = encode(m.Chunk("s", "g", "u", 0, 0, 0), b"x")


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "a message of 0 frames; expected 2 or 3"),
        ([*CHUNK, b"x"], "a message of 4 frames; expected 2 or 3"),
        ([b"SDLD\x00\x01", HEARTBEAT[1]], "does not begin with its magic"),
        ([b"SDLC\x00", HEARTBEAT[1]], "does not begin with its magic"),
        ([b"SDLC\x00\x01\x00", HEARTBEAT[1]], "does not begin with its magic"),
        ([b"SDLC\x00\x02", HEARTBEAT[1]], "wire version 2; expected 1; install the same swift-diloco on both sides"),
        ([frames.PREAMBLE, b""], "not a message from an island"),
        ([frames.PREAMBLE, b"\xff" * 10], "not a message from an island"),
        ([frames.PREAMBLE, b"\x91" * 100_000], "not a message from an island"),
        ([frames.PREAMBLE, msgspec.msgpack.encode({"type": "Nonsense"})], "not a message from an island"),
        ([*HEARTBEAT, b"x"], "a Heartbeat with payload"),
        (CHUNK[:2], "a Chunk without payload"),
        ([*CHUNK[:2], bytes(frames.PAYLOAD_BYTES_MAX + 1)], "a payload of 1048577 bytes; at most 1048576 are taken"),
        (encode(m.Leave("s", "g", "x" * 70_000)), "a Leave header of 700.. bytes; at most 65536 are taken"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_expected(parts: list[bytes], reason: str) -> None:
    with pytest.raises(WireError, match=reason) as caught:
        decode_from_island(parts)
    assert isinstance(caught.value, PeerError)


def test_version_is_judged_before_the_header_is_looked_at() -> None:
    with pytest.raises(WireError, match="wire version 9"):
        decode_from_island([b"SDLC\x00\x09", b"\xff"])


def test_header_beyond_the_largest_limit_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "BIG_HEADER_BYTES_MAX", 100)
    with pytest.raises(WireError, match="a header of 101 bytes; at most 100 are taken"):
        decode_from_island([frames.PREAMBLE, bytes(101)])


def test_layout_may_be_larger_than_an_ordinary_header() -> None:
    layout = make_layout([TensorSpec(f"layers.{i}.weight", (4, 4), "rda") for i in range(4000)])
    parts = encode(m.Hello(0, "n", layout.fingerprint, "h", 1, "i", 0, 1, layout))
    assert len(parts[1]) > frames.HEADER_BYTES_MAX
    message, _ = decode_from_island(parts)
    assert isinstance(message, m.Hello) and message.layout == layout


def test_field_with_a_default_may_be_missing_in_a_message() -> None:
    old = msgspec.msgpack.encode({"type": "HeartbeatReply", "session": "s", "generation": "g", "members": 2})
    assert decode_from_syncer([frames.PREAMBLE, old])[0] == m.HeartbeatReply("s", "g", 2, "")
