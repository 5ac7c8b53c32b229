"""Orders of an operator, from the command line through a real syncer to fake islands and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swift_diloco import cli
from swift_diloco.core.errors import PeerError
from swift_diloco.core.formats import status
from swift_diloco.tools.keygen.cli import make_pairs
from tests.e2e.harness import FAST, SyncerProcess, in_background
from tests.fakes.island import FakeIsland, Job
from tests.fakes.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.net

ENDLESS = 100_000
"""Steps of an island that only an order ends."""


@contextmanager
def training(islands: list[FakeIsland]) -> Iterator[None]:
    """Islands that have taken some steps, and have ended when this ends."""
    thread = in_background(islands)
    wait_until(lambda: all(island.steps_done >= 3 for island in islands), "the islands train")
    yield
    thread.join(WAIT_S)
    assert not thread.is_alive(), "the islands did not obey"


def endless(address: str, island: int = 0, **fields: str) -> FakeIsland:
    return FakeIsland(Job(address, island=island, steps=ENDLESS, step_s=0.02, **fields))  # type: ignore[arg-type]


def followed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What an order that is followed prints."""
    capsys.readouterr()
    assert cli.main(list(words)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of an order that is a mistake."""
    capsys.readouterr()
    assert cli.main(list(words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_save_is_obeyed_by_the_island_that_is_meant_and_save_and_stop_by_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SyncerProcess(tmp_path, *FAST, "--expected-islands", "2") as syncer:
        here = ("--run-dir", str(tmp_path))
        islands = [endless(syncer.address, 0), endless(syncer.address, 1)]
        with training(islands):
            assert followed(capsys, "admin", "save", "--island", "1", *here) == "save was sent to island 1\n"
            wait_until(lambda: islands[1].saves, "it saves")
            assert islands[0].saves == []
            shown = followed(capsys, "status", *here)
            assert shown.startswith("training: waiting for ") and "outer step" in shown
            assert [line.split()[0] for line in shown.splitlines() if line[:1].isdigit()] == ["0", "1"]
            facts = status.decode(followed(capsys, "status", "--json", *here))
            assert [member.island for member in facts.members] == [0, 1] and facts.bytes_pushed > 0
            followed(capsys, "admin", "save-and-stop", "--reason", "maintenance", *here)
        assert [len(island.saves) for island in islands] == [1, 2]
        assert [island.errors for island in islands] == [[], []]
        wait_until(lambda: syncer.text().count("it stopped before the end of the run") == 2, "both are gone")


def test_abort_ends_an_island_with_the_operators_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SyncerProcess(tmp_path, *FAST) as syncer:
        island = endless(syncer.address)
        with training([island]):
            followed(capsys, "admin", "abort", "--reason", "wrong data", "--run-dir", str(tmp_path))
        (error,) = island.errors
        assert isinstance(error, PeerError) and "wrong data" in str(error) and island.saves == []


def test_a_paused_island_obeys_at_once_and_goes_on_when_min_islands_is_lowered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SyncerProcess(tmp_path, *FAST) as syncer:
        here = ("--run-dir", str(tmp_path))
        island = endless(syncer.address)
        with training([island]):
            assert followed(capsys, "admin", "set", "min_islands=2", *here) == "min_islands is 2 (was 1)\n"
            wait_until(lambda: island.islands[0].session.paused is not None, "it is parked")
            assert followed(capsys, "status", *here).startswith("paused: waiting for 1 more island(s) to join")
            followed(capsys, "admin", "save", *here)
            wait_until(lambda: island.saves, "it saves where it is parked")
            parked_at = island.steps_done
            followed(capsys, "admin", "set", "min-islands=1", *here)
            wait_until(lambda: island.steps_done > parked_at + 3, "it trains on")
            followed(capsys, "admin", "save_and_stop", *here)
        assert island.errors == []


def test_stop_is_the_graceful_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SyncerProcess(tmp_path, *FAST) as syncer:
        assert syncer.address
        assert followed(capsys, "admin", "stop", "--run-dir", str(tmp_path)).startswith("the syncer stops")
        assert syncer.wait() == 0
    assert not (tmp_path / "admin.token").exists()


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SyncerProcess(tmp_path, *FAST) as syncer:
        here = ("--run-dir", str(tmp_path))
        address = syncer.address
        assert "unknown order 'sav', the nearest is save" in refused(capsys, "admin", "sav", *here)
        assert "'quorum' is no change; expected NAME=VALUE" in refused(capsys, "admin", "set", "quorum", *here)
        assert "the nearest valid name is quorum" in refused(capsys, "admin", "set", "quorm=1", *here)
        assert "which island? give --island N" in refused(capsys, "admin", "kick", *here)
        assert "no island is connected" in refused(capsys, "admin", "save", *here)
        assert "need --key" in refused(capsys, "admin", "save", "--syncer", address)
        token = tmp_path / "token"
        token.write_text("wrong\n")
        token.chmod(0o600)
        words = ("admin", "stop", "--syncer", address, "--key", str(token))
        assert "refused: orders need the admin token" in refused(capsys, *words)
        (tmp_path / "admin.token").chmod(0o644)
        assert "can be read or changed by others (mode 0644)" in refused(capsys, "status", *here)
    assert "no syncer lives in the run folder" in refused(capsys, "status", "--run-dir", str(tmp_path / "none"))


def test_with_encryption_an_admin_key_gives_orders_and_an_islands_key_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_pairs(tmp_path / "keys", ("syncer", "admin", "island-0"))
    own = ("--curve-key", f"{tmp_path}/keys/syncer.key", "--curve-allow", f"{tmp_path}/keys")
    with SyncerProcess(tmp_path / "run", *own, "--admin-keys", f"{tmp_path}/keys/admin.pub") as syncer:
        there = ("--syncer", syncer.address, "--syncer-key", f"{tmp_path}/keys/syncer.pub")
        here = ("--run-dir", str(tmp_path / "run"))
        for place in (there, here):
            told = followed(capsys, "status", *place, "--key", f"{tmp_path}/keys/admin.key")
            assert told.startswith("joining: waiting for")
        words = ("admin", "stop", *there, "--key", f"{tmp_path}/keys/island-0.key")
        assert "refused: orders need a key that is among --admin-keys" in refused(capsys, *words)
        assert "need --key" in refused(capsys, "status", *here)
        facts = status.decode(followed(capsys, "status", "--json", *here, "--key", f"{tmp_path}/keys/admin.key"))
        assert facts.bad_messages == 1
