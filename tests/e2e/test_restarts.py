"""An island that vanishes and comes back from its checkpoint, against a real syncer: each row, bit for bit."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swift_diloco.island import Island
from swift_diloco.record import RECORD_FILE
from tests.e2e.harness import FAST, SyncerProcess, check_tape
from tests.fakes.trial import Gate, Trial, wait_until

pytestmark = pytest.mark.net

VANISHES_AT = 2
"""Before H steps: nothing is pushed."""
END = 18


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
        others_gate, own_gate = Gate(1, END), Gate(1)
        other = Trial(address, END, island_id=1, target=3.0, before_step=others_gate).begin()
        first = Trial(address, 400, ranks=ranks, vanish_when=vanishing(row), **mine).begin()
        first.join()
        assert first.vanished
        (saved_at,) = first.saved_at
        if row.moved:
            others_gate.open(1)
            wait_until(lambda: {c["fragment"] for c in syncer.events("commit")} == {0, 1, 2}, "all move on", other)
        folder = tmp_path / "out" / f"checkpoint-{saved_at}"
        again = Trial(address, saved_at + END, ranks=ranks_again, resume_from=folder, before_step=own_gate, **mine)
        again.begin()
        wait_until(lambda: again.has_started, "the island has come back", again)
        check_row(row, first, again, folder)
        others_gate.open()
        own_gate.open()
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
    record = json.loads((folder / RECORD_FILE).read_text())
    assert (record["iteration"], len(record["anchors"])) == (first.saved_at[0], first.ranks * row.anchors)


def check_no_anchor_merged_twice(tape: list[dict[str, Any]]) -> None:
    """Over all lives of an island: no two contributions of it to a fragment are measured from one version."""
    merged = set()
    for line in tape:
        if line["event"] != "commit" or line["void"]:
            continue
        for part in line["contributions"]:
            key = (line["fragment"], part["island"], part["base_version"])
            assert not part["steps"] or key not in merged, key
            merged.add(key)
