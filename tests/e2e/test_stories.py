"""Brains that raise in real processes: the story is told with the error, kept in a file, and met again in a replay."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from swift_diloco.core.errors import PeerError
from swift_diloco.core.files.story_files import read_story
from swift_diloco.core.story.dump import Raised, parsed
from swift_diloco.core.story.replay import replay
from swift_diloco.island.brain.holdings import Holdings
from tests.e2e import planted_syncer
from tests.e2e.harness import FAST, SyncerProcess, in_background, run_side_by_side
from tests.e2e.test_admin import endless, followed, training
from tests.fakes.island import FakeIsland, Job

pytestmark = pytest.mark.net

WAIT_S = 30.0
ENDLESS = 100_000


def end_with(syncer: SyncerProcess) -> None:
    """Have an island end when its syncer has."""
    if syncer.process.poll() is not None:
        raise PeerError("the syncer is gone")


class PlantedSyncer(SyncerProcess):
    module = "tests.e2e.planted_syncer"


def test_a_syncer_killed_by_its_own_assertion_leaves_a_story_that_meets_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PlantedSyncer(tmp_path, *FAST, "--expected-islands", "2") as syncer:
        jobs = [Job(syncer.address, island=n, steps=ENDLESS, step_s=0.02) for n in (0, 1)]
        islands = [FakeIsland(job, on_step=lambda step: end_with(syncer)) for job in jobs]
        thread = in_background(islands)
        assert syncer.wait() == 1
        thread.join(WAIT_S)
        assert not thread.is_alive()
    (path,) = tmp_path.glob("story-syncer-*.json")
    text = syncer.text()
    traceback, _, story = text.partition(f"AssertionError: {planted_syncer.TEXT}\n")
    assert "planted_syncer.py" in traceback and story.startswith(f"the story of syncer follows; it is in {path}, ")
    assert " events of syncer (time in s, event, its effects):" in story
    assert story.rstrip().endswith(planted_syncer.TEXT)
    assert text.count(str(path)) == 1
    dump = read_story(path)
    assert dump.raised == Raised("AssertionError", planted_syncer.TEXT)
    planted_syncer.plant(monkeypatch.setattr)
    error = replay(dump)
    assert isinstance(error, AssertionError) and str(error) == planted_syncer.TEXT


def test_an_island_whose_session_asserts_leaves_a_story_that_meets_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Holdings.published

    def published(self: Holdings, name: Any, run: str) -> Any:
        if name.version >= 4:
            raise AssertionError("planted at version 4")
        return real(self, name, run)

    monkeypatch.setattr(Holdings, "published", published)
    with SyncerProcess(tmp_path / "syncer", *FAST) as syncer:
        folder = tmp_path / "run"
        folder.mkdir()
        island = FakeIsland(Job(syncer.address, ranks=2, steps=ENDLESS, step_s=0.02, folder=str(folder)))
        run_side_by_side([island])
    assert [str(error) for error in island.errors] == ["planted at version 4"] * 2
    (path,) = folder.glob("story-island-0-*.json")
    notes = ["\n".join(getattr(error, "__notes__", ())) for error in island.errors]
    assert sorted(note.count(str(path)) for note in notes) == [0, 1], "rank 0 tells it, once"
    assert " events of island-0 (time in s, event, its effects):" in max(notes)
    error = replay(read_story(path))
    assert isinstance(error, AssertionError) and str(error) == "planted at version 4"


def test_the_story_of_a_living_syncer_is_shown_and_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SyncerProcess(tmp_path, *FAST) as syncer:
        here = ("--run-dir", str(tmp_path))
        with training([endless(syncer.address)]):
            shown = followed(capsys, "status", "--story", *here).splitlines()
            dump = parsed(followed(capsys, "status", "--story", "--json", *here))
            followed(capsys, "admin", "save_and_stop", *here)
    assert re.fullmatch(r"the last \d+ events of syncer \(time in s, event, its effects\):", shown[0])
    assert any("Received(" in line and "Hello(" in line for line in shown)
    assert any(line.startswith(" " * 14 + "Send(") and "Welcome(" in line for line in shown)
    assert dump.raised is None and len(dump.events) >= 5 and replay(dump) is None
