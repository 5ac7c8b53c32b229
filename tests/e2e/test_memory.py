"""What an island's start costs in memory: its anchors, and little more, however large the model is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swift_diloco.core.formats import tape_lines
from tests.e2e.harness import SyncerProcess
from tests.fakes.trial import Trial

pytestmark = [pytest.mark.net, pytest.mark.timeout(180)]

ELEMENTS = 24 << 20
"""96 MiB in 8 fragments: one and a half times the allowance."""
ALLOWANCE_BYTES = 64 << 20
FLAGS = ("--sync-every-steps", "3", "--fragments", "8", "--pipeline", "8", "--reconnect-grace-s", "0.2")


def growth(address: str, **job: Any) -> tuple[int, int]:
    """Bytes of the island's pieces, and by how much its memory grew while it started."""
    given = json.dumps({"address": address, "elements": ELEMENTS, **job})
    command = [sys.executable, "-m", "tests.fakes.measured", given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["pieces"], found["growth"]


def test_initial_values_catching_up_and_shifting_cost_the_anchors_and_64_mib(tmp_path: Path) -> None:
    out = tmp_path / "out"
    saving = {"out": str(out), "settings": {"save_anchors": True}}
    with SyncerProcess(tmp_path / "run", *FLAGS) as syncer:
        grown = {"provides the initial values": growth(syncer.address, steps=2, **saving)}
        grown["catches up"] = growth(syncer.address, steps=1, island_id=1)
        mover = Trial(syncer.address, 4000, island_id=2, elements=ELEMENTS, target=3.0, step_s=0.05, looks=False)
        mover.vanish_when = lambda island, step: len({c.fragment for c in syncer.events(tape_lines.Commit)}) == 8
        mover.begin().join()
        assert mover.vanished
        resume_from = str(out / "checkpoint-2")
        grown["shifts"] = growth(syncer.address, steps=3, resume_from=resume_from, settings={"save_anchors": True})
    for what, (pieces, more) in grown.items():
        assert pieces == 4 * ELEMENTS
        assert pieces * 0.5 < more <= pieces + ALLOWANCE_BYTES, (what, more - pieces)
    print({what: f"{(more - pieces) / (1 << 20):.0f} MiB over the anchors" for what, (pieces, more) in grown.items()})
