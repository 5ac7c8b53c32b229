"""An island that vanishes and comes back from its checkpoint, against a real syncer: each row, bit for bit."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swift_diloco.core.errors import DilocoError
from swift_diloco.core.formats import tape_lines
from swift_diloco.island.files.record_files import RECORD_FILE
from swift_diloco.island.island import Island
from tests.e2e.harness import FAST, SyncerProcess, check_tape
from tests.fakes.quadratic import QuadraticModel
from tests.fakes.trial import Hold, Trial
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.net

VANISHES_AT = 2
"""Before H steps: nothing is pushed."""
END = 18
MANY = 4000
"""More steps than a test lets an island take."""


@dataclass(frozen=True)
class Row:
    """How the first life ends, what the second one finds, and what it makes of it."""

    expected: str
    pushed: bool = False
    """All anchors are spent: the syncer holds a delta from each."""
    moved: bool = False
    """The other island's work is in the global values when this one comes back."""
    anchors: bool = True


ROWS = {
    "same": Row("kept"),
    "same, anchors not saved": Row("kept", anchors=False),
    "same, pushed": Row("kept", pushed=True),
    "behind": Row("shifted", moved=True),
    "behind, anchors not saved": Row("overwritten", moved=True, anchors=False),
    "behind, pushed": Row("overwritten", pushed=True, moved=True),
}


def vanishing(row: Row) -> Callable[[Island, int], bool]:
    def when(island: Island, step: int) -> bool:
        if not row.pushed:
            return step == VANISHES_AT
        return all(anchor.spent and anchor.settled for anchor in island.session.anchors)

    return when


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("ranks", "ranks_again"), [(1, 2), (2, 1)])
def test_row_of_the_resume_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, ranks: int, ranks_again: int
) -> None:
    caplog.set_level(logging.INFO, logger="swift_diloco")
    row = ROWS[name]
    # Both islands' answers are needed, so what one pushed is held until the other one moves.
    flags = (*FAST, "--expected-islands", "2", "--quorum", "2", "--pipeline", "3")
    with SyncerProcess(tmp_path / "run", *flags) as syncer:
        address = syncer.address
        mine: dict[str, Any] = {"out": tmp_path / "out", "settings": {"save_anchors": row.anchors}}
        others, own = Hold(lambda step: step == 1), Hold(lambda step: True)
        other = Trial(address, MANY, island_id=1, target=3.0, before_step=others).begin()
        first = Trial(address, MANY, ranks=ranks, vanish_when=vanishing(row), **mine).begin()
        first.join()
        assert first.vanished
        (saved_at,) = first.saved_at
        if row.moved:
            others.release()
            wait_until(
                lambda: {c.fragment for c in syncer.events(tape_lines.Commit)} == {0, 1, 2}, "all move on", other
            )
            others.again()
        folder = tmp_path / "out" / f"checkpoint-{saved_at}"
        again = Trial(address, MANY, ranks=ranks_again, resume_from=folder, before_step=own, **mine)
        again.begin()
        wait_until(lambda: again.has_started, "the island has come back", again)
        check_row(row, first, again, folder)
        other.steps, again.steps = other.steps_done + END, again.steps_done + END
        others.release()
        own.release()
        again.join()
        other.join()
        assert syncer.wait() == 0, syncer.text()
        assert again.digest == other.digest
        check_tape(syncer.tape())
        check_no_anchor_merged_twice(syncer.tape())
    assert any(f"3 {row.expected}" in record.getMessage() for record in caplog.records)


def check_row(row: Row, first: Trial, again: Trial, folder: Path) -> None:
    before, now = first.now, again.at_start
    for theta, old, found, new in zip(before.model, before.anchors, now.model, now.anchors, strict=True):
        assert not np.array_equal(theta, new), "the rows could not be told apart"
        assert np.array_equal(old, new) is not row.moved
        expected = {"kept": theta, "overwritten": new, "shifted": new + (theta - old)}[row.expected]
        assert found.tobytes() == expected.tobytes()
    pushed, fetched = again.moved_bytes
    assert pushed == 0, "a resumed island whose syncer lives provides no initial values"
    assert fetched == (0 if row.expected == "kept" and row.anchors else sum(t.nbytes for t in now.model))
    record = json.loads((folder / RECORD_FILE).read_text())
    assert (record["iteration"], len(record["anchors"])) == (first.saved_at[0], first.ranks * row.anchors)


def check_no_anchor_merged_twice(tape: list[tape_lines.TapeLine]) -> None:
    """Over all lives of an island: no two contributions of it to a fragment are measured from one version."""
    merged = set()
    for line in tape:
        if not isinstance(line, tape_lines.Commit) or line.void:
            continue
        for part in line.contributions:
            key = (line.fragment, part.island, part.base_version)
            assert not part.steps or key not in merged, key
            merged.add(key)


END_OF = {"before it has saved": "save", "after it has saved, before it said so": "saved"}


@pytest.mark.parametrize("when", END_OF)
@pytest.mark.parametrize("ranks", [1, 2])
def test_island_that_dies_with_the_final_cut_in_its_model_gets_it_again(tmp_path: Path, when: str, ranks: int) -> None:
    flags = (*FAST, "--expected-islands", "2", "--quorum", "2", "--final-linger-s", "60")
    with SyncerProcess(tmp_path / "run", *flags) as syncer:
        mine: dict[str, Any] = {"out": tmp_path / "out", "ranks": ranks, "settings": {"save_anchors": True}}
        other = Trial(syncer.address, END, island_id=1, target=3.0).begin()
        first = Trial(syncer.address, END, vanish_before=END_OF[when], save_every=5, **mine).begin()
        first.join()
        other.join()
        assert first.vanished
        saved_at = 15 if when == "before it has saved" else END
        assert first.saved_at[-1] == saved_at
        folder = tmp_path / "out" / f"checkpoint-{saved_at}"
        again = Trial(syncer.address, END, resume_from=folder, **mine).begin().join()
        assert syncer.wait() == 0, syncer.text()
        # It trains no step of its own: the run is over.
        assert (again.steps_done, again.saved_at) == (saved_at, [saved_at])
        assert again.digest == first.digest == other.digest


def test_island_that_resumes_at_its_last_step_answers_and_ends_with_the_others(tmp_path: Path) -> None:
    flags = (*FAST, "--expected-islands", "2", "--quorum", "2")
    with SyncerProcess(tmp_path / "run", *flags) as syncer:
        mine: dict[str, Any] = {"out": tmp_path / "out", "settings": {"save_anchors": True}}
        hold = Hold.before(4)
        other = Trial(syncer.address, END, island_id=1, target=3.0, before_step=hold).begin()
        first = Trial(syncer.address, 4, vanish_when=lambda island, step: step == 4, **mine).begin().join()
        again = Trial(syncer.address, 4, resume_from=tmp_path / "out" / "checkpoint-4", **mine).begin()
        wait_until(lambda: "the final cut" in again.waits_for, "it is done at once", again)
        hold.release()
        other.join()
        again.join()
        assert syncer.wait() == 0, syncer.text()
        assert first.vanished and again.steps_done == 4
        assert again.digest == other.digest
        parts = [p for line in syncer.events(tape_lines.Commit) for p in line.contributions if p.island == 0]
        assert max(part.steps for part in parts) == 4
        check_no_anchor_merged_twice(syncer.tape())


def test_record_of_another_run_is_a_cold_start_and_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine: dict[str, Any] = {"out": tmp_path / "out", "settings": {"save_anchors": True}}
    with SyncerProcess(tmp_path / "one", *FAST) as syncer:
        Trial(syncer.address, 4, vanish_when=lambda island, step: step == 2, **mine).begin().join()
    caplog.set_level(logging.INFO, logger="swift_diloco")
    with SyncerProcess(tmp_path / "two", *FAST, "--expected-islands", "1") as syncer:
        hold = Hold.before(2)
        other = Trial(syncer.address, END, start=7.0, before_step=hold).begin()
        wait_until(hold.held.is_set, "the other run has its values", other)
        again = Trial(syncer.address, 4, island_id=1, lr=0.0, resume_from=tmp_path / "out" / "checkpoint-2")
        again.begin()
        wait_until(lambda: again.has_started, "it has joined the other run", again)
        assert all((tensor == 7.0).all() for tensor in again.at_start.model)
        hold.release()
        again.join()
        other.join()
        assert syncer.wait() == 0, syncer.text()
    cold = [r.getMessage() for r in caplog.records if "cold start" in r.getMessage()]
    assert len(cold) == 1
    assert "island 1: cold start, local values will be overwritten: the record is of run " in cold[0]


class BrokenModel(QuadraticModel):
    """Rank 1's values cannot be read."""

    def read(self, fragment: int, out: torch.Tensor) -> None:
        if self.rank == 1:
            raise RuntimeError("the device is gone")
        super().read(fragment, out)


def test_rank_that_cannot_export_the_initial_values_fails_the_whole_island_within_seconds(tmp_path: Path) -> None:
    with SyncerProcess(tmp_path / "run", *FAST) as syncer:
        begun = time.monotonic()
        trial = Trial(syncer.address, 4, ranks=2, model_type=BrokenModel).begin()
        with pytest.raises((RuntimeError, DilocoError)):
            trial.join()
        assert time.monotonic() - begun < 5.0
        texts = sorted(str(error) for error in trial.errors)
        assert texts == ["rank 1: the device is gone", "the device is gone"]
        wait_until(lambda: "rank 1: the device is gone" in syncer.text(), "the syncer is told")
