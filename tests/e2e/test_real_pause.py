"""A real `megatron sft` island of two ranks while the run is paused, beside a real syncer and a fake island."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest
import torch

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.layout.tensors import TensorSpec
from tests.e2e.harness import FAST, SyncerProcess, check_tape
from tests.e2e.test_real_resume import JOB_S, Life, Site, same_bits
from tests.fakes.trial import Trial
from tests.fakes.waiting import wait_until
from tests.forkserver.forkserver import ForkServer
from tests.forkserver.tiny import TinyProject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PAIR = (*FAST, "--min-islands", "2", "--quorum", "2", "--expected-islands", "2", "--island-lease-s", "5")
STEPS = 60


def steps_of(life: Life) -> int:
    path = life.folder / "rates-0.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def specs(life: Life) -> tuple[TensorSpec, ...]:
    return msgspec.json.decode((life.folder / "layout.json").read_bytes(), type=tuple[TensorSpec, ...])


def test_two_ranks_idle_together_and_resume_by_themselves(
    fork_server: ForkServer, tiny_project: TinyProject, tmp_path: Path
) -> None:
    site = Site(fork_server, tiny_project, tmp_path)
    with SyncerProcess(tmp_path / "run", *PAIR) as syncer:
        life = site.start("real", syncer.address, ranks=2, train_iters=STEPS, save_steps=STEPS)
        wait_until(lambda: "waits for islands to join (1 of 2 are here)" in life.job.text(), "it waits at the start")
        assert steps_of(life) == 0
        gone = threading.Event()
        common = {"target": 0.1, "step_s": 0.02, "model_specs": specs(life)}
        goes = Trial(syncer.address, 4000, 1, vanish_when=lambda island, step: gone.is_set(), **common).begin()  # type: ignore[arg-type]
        wait_until(lambda: len(syncer.events(tape_lines.Commit)) >= 1, "rounds are taken", goes)
        gone.set()
        goes.join()
        wait_until(lambda: "paused by the syncer" in life.job.text(), "it is told of the pause")
        parked_at = steps_of(life)
        time.sleep(3.0)  # several times the longest sleep of a parked rank
        assert steps_of(life) <= parked_at + 1 < STEPS
        assert life.job.poll() == {}
        back = Trial(syncer.address, STEPS, 1, **common).begin()  # type: ignore[arg-type]
        back.join()
        life.job.wait(JOB_S).check()
        assert syncer.wait() == 0, syncer.text()
        check_tape(syncer.tape(), min_islands=2)
        final = life.values(f"saved-{STEPS}")
        names = [spec.name for spec in back.islands[0].layout.tensors]
        model = back.now.model
        assert same_bits(final, {name: torch.from_numpy(model[names.index(name)]) for name in final})
    text = life.job.text()
    assert "1 more island" in text
    assert text.count("the pause is over") == 1
