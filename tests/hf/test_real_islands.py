"""Real `swift sft` processes as islands beside a real syncer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import FAST, SyncerProcess, check_tape
from tests.hf.jobs import Job, run_islands, weights
from tests.trainer.forkserver import ForkServer
from tests.trainer.tiny import TinyProject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PAIR = (*FAST, "--expected-islands", "2", "--min-islands", "2", "--quorum", "2")


def test_two_islands_end_with_equal_exports_bit_for_bit(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    jobs = [Job(project, tmp_path / "out0"), Job(project, tmp_path / "out1", {"data_seed": 7})]
    with SyncerProcess(tmp_path / "run", *PAIR) as syncer:
        run_islands(swift_server, syncer, jobs)
        assert syncer.wait() == 0
        check_tape(syncer.tape(), min_islands=2)
        assert len(syncer.events("commit")) >= 3
    first, second = weights(tmp_path / "out0"), weights(tmp_path / "out1")
    assert first == second
    start = weights_of_model(project)
    assert all(first[name] != start[name] for name in start), "training changed nothing"


def weights_of_model(project: TinyProject) -> dict[str, bytes]:
    """The model before training, in FP32."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(project.model / "model.safetensors")
    return {name: tensor.to(torch.float32).numpy().tobytes() for name, tensor in tensors.items()}
