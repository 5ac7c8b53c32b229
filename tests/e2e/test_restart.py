"""A syncer that is killed or stopped and started again, with fake islands that live on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swift_diloco.audit.auditing import audit
from swift_diloco.audit.report import Fate
from swift_diloco.core.checkpoint_files import read_newest
from tests.e2e.harness import FAST, SyncerProcess, check_tape, run_side_by_side
from tests.fakes.island import FakeIsland, Job

pytestmark = pytest.mark.net

WAIT_S = 30.0


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for something another process does."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come within {WAIT_S} s"
        time.sleep(0.01)


class Islands:
    """Fake islands that run while the test does something to the syncer."""

    def __init__(self, *jobs: Job) -> None:
        self.islands = [FakeIsland(job) for job in jobs]
        self._thread = threading.Thread(target=run_side_by_side, args=(self.islands,), daemon=True)
        self._thread.start()

    def finish(self) -> list[FakeIsland]:
        self._thread.join(90.0)
        for island in self.islands:
            if island.errors:
                raise island.errors[0]
        return self.islands


def standing(tape: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The commits that are in the state: a restart takes back those after the step it went on from."""
    commits: list[dict[str, Any]] = []
    for line in tape:
        if line["event"] == "resumed":
            commits = [each for each in commits if each["t"] <= line["t"]]
        elif line["event"] == "commit":
            commits.append(line)
    return commits


def check_prefix(checkpoint: Path, tape: list[dict[str, Any]]) -> int:
    """A checkpoint is what the tape says of its outer step, bit for bit; returns that step."""
    state = read_newest(checkpoint).state
    commits = [line for line in standing(tape) if line["t"] <= state.step]
    assert [line["t"] for line in commits] == list(range(1, state.step + 1))
    for name in state.values:
        of_fragment = [line for line in commits if line["fragment"] == name.fragment and not line["void"]]
        if of_fragment:
            assert (of_fragment[-1]["version"], of_fragment[-1]["digest"]) == (name.version, name.digest)
        else:
            assert name.version == 0
    return state.step


@pytest.mark.parametrize(
    "mode",
    [
        ("--checkpoint-every", "2"),
        ("--checkpoint-every", "1", "--background-checkpoint", "--checkpoint-on-start"),
        ("--durable-publish",),
    ],
    ids=["plain", "background", "durable"],
)
def test_a_killed_syncer_goes_on_from_its_checkpoint_and_the_islands_with_it(
    tmp_path: Path, mode: tuple[str, ...]
) -> None:
    saved = tmp_path / "saved"
    flags = (*FAST, "--min-islands", "2", "--checkpoint-path", str(saved), *mode)
    with SyncerProcess(tmp_path, *flags) as syncer:
        address = syncer.address
        islands = Islands(
            Job(address, island=0, steps=40, target=1.0, step_s=0.05),
            Job(address, island=1, ranks=2, steps=40, target=3.0, step_s=0.05),
        )
        until(lambda: len(syncer.events("commit")) >= 5, "five commits")
        syncer.process.kill()
        syncer.process.wait()
        step = check_prefix(saved, syncer.tape())
        assert step > 0
        if "--durable-publish" in mode:
            assert step in (syncer.events("commit")[-1]["t"], syncer.events("commit")[-1]["t"] - 1)
    port = ("--bind", address)
    with SyncerProcess(tmp_path, *flags, "--resume", *port) as syncer:
        first, second = islands.finish()
        assert syncer.wait() == 0, syncer.text()
        assert first.digest == second.digest
        (resumed,) = syncer.events("resumed")
        assert resumed["t"] == step
        check_tape(standing(syncer.tape()), min_islands=2)
        report = audit(tmp_path / "tape.jsonl")
        assert report.ok, report.violations
        assert report.fates[Fate.OPEN].pushes == 0
        state = read_newest(saved).state
        assert state.final and check_prefix(saved, syncer.tape()) == state.step
