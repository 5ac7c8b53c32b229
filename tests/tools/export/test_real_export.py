"""The export of a real run's checkpoint against what the trainer itself exported at its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.harness import FAST, SyncerProcess
from tests.forkserver.forkserver import SERVER_ENVIRONMENT, ForkServer
from tests.forkserver.tiny import TinyProject
from tests.trainers.hf.jobs import Job, run_islands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXPORT = "import sys; from swift_diloco.cli import main; raise SystemExit(main(sys.argv[1:]))"


def export(*words: object) -> subprocess.CompletedProcess[str]:
    """`swift-diloco export WORDS`."""
    environment = {**os.environ, **SERVER_ENVIRONMENT}
    command = [sys.executable, "-c", EXPORT, "export", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_the_checkpoint_of_a_megatron_run_is_exported_as_its_trainer_exports_the_final_cut(
    fork_server: ForkServer, tiny_project: TinyProject, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    with SyncerProcess(tmp_path / "run", *FAST, "--checkpoint-path", str(saved)) as syncer:
        flags = {"plugin": "diloco", "diloco_syncer": syncer.address, "diloco_heartbeat_s": 1, "train_iters": 6}
        argv = tiny_project.arguments(tmp_path / "out", (), **flags, save_safetensors="true")
        fork_server.run(argv, 1).check()
        assert syncer.wait() == 0, syncer.text()
    out = tmp_path / "hf"
    done = export(saved, "--hf", tiny_project.model, "--out", out, "--", "--model_type", "qwen3", "--template", "qwen3")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "the final cut of run" in done.stdout
    ours, theirs = weights(out), weights(tmp_path / "out" / "checkpoint-6")
    base = weights(tiny_project.model)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
    assert any(not torch.equal(ours[name], base[name]) for name in ours)
    assert (out / "config.json").exists()


def test_the_checkpoint_of_a_transformers_run_is_exported_in_the_type_of_the_base(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    with SyncerProcess(tmp_path / "run", *FAST, "--checkpoint-path", str(saved)) as syncer:
        run_islands(swift_server, syncer, [Job(project, tmp_path / "out")])
        assert syncer.wait() == 0, syncer.text()
    done = export(saved, "--hf", project.model, "--out", tmp_path / "hf")
    assert done.returncode == 0, done.stderr[-4000:]
    ours, theirs, base = (weights(folder) for folder in (tmp_path / "hf", last_save(tmp_path / "out"), project.model))
    assert ours.keys() == base.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == base[name].dtype and torch.equal(ours[name], tensor.to(base[name].dtype)), name
    assert any(not torch.equal(ours[name], base[name]) for name in ours)


def last_save(output: Path) -> Path:
    """The folder of the trainer's last checkpoint."""
    return max(output.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
