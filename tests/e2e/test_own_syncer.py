"""The syncer that an island starts itself: it dies under the living island, which starts it again."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from swift_diloco.core.files.run_folder import living_address, living_pid
from tests.e2e.harness import FAST, run_side_by_side
from tests.fakes.island import FakeIsland, Job

pytestmark = pytest.mark.net

ARGUMENTS = " ".join(("--bind tcp://127.0.0.1:0 --checkpoint-every 1 --align carry", *FAST))


def test_an_embedded_syncer_that_is_killed_comes_back_at_its_port_and_the_run_ends(tmp_path: Path) -> None:
    killed = threading.Event()
    addresses: list[str | None] = []

    def kill_once(step: int) -> None:
        committed = (tmp_path / "tape.jsonl").read_text().count('"event":"checkpoint"')
        pid = living_pid(tmp_path)
        if not killed.is_set() and committed >= 2 and pid:
            addresses.append(living_address(tmp_path))
            killed.set()
            os.kill(pid, signal.SIGKILL)
        elif killed.is_set() and len(addresses) == 1 and living_address(tmp_path) and pid:
            addresses.append(living_address(tmp_path))

    island = FakeIsland(Job("", steps=350, step_s=0.03, run_dir=str(tmp_path), syncer_args=ARGUMENTS), kill_once)
    try:
        run_side_by_side([island])
    finally:
        assert island.syncer is not None and island.syncer.stop()
    assert killed.is_set() and not island.errors
    assert len(addresses) == 2 and addresses[0] == addresses[1]
    assert (
        "goes on from" in (tmp_path / "syncer.log").read_text()
        or '"event":"resumed"' in (tmp_path / "tape.jsonl").read_text()
    )
    plain = 1.0
    assert all(abs(tensor - plain).max() < 1e-6 for tensor in island.tensors.values())
