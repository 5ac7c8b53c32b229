"""Command lines and pairs of `swift sft` islands for tests, run in the fork server beside a real syncer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.torch import load_file

from tests.e2e.harness import FAST, SyncerProcess
from tests.fakes.waiting import wait_until
from tests.forkserver.forkserver import ForkServer, RunningJob
from tests.forkserver.tiny import TinyProject

LONE: Mapping[str, str] = {"RANK": "-1", "LOCAL_RANK": "-1"}
"""What tells ms-swift and accelerate that the process was not started by torchrun."""

PAIR = (*FAST, "--expected-islands", "2", "--min-islands", "2", "--quorum", "2")
"""Flags of a syncer whose two islands need each other."""

START_S = 60.0
"""Until a real island trains."""

TIMEOUT_S = 100.0


@dataclass
class Job:
    """One `swift sft` job: 8 steps of 4 examples; `flags` replace or add flags, None removes one."""

    project: TinyProject
    output: Path
    flags: Mapping[str, object] = field(default_factory=dict)
    ranks: int = 1
    plugin: bool = True

    def words(self, island: int = 0, syncer: str = "") -> list[str]:
        flags: dict[str, object] = {
            "model": self.project.model, "model_type": "qwen3", "template": "qwen3_nothinking",
            "dataset": self.project.data, "split_dataset_ratio": 0, "tuner_type": "full", "check_model": "false",
            "torch_dtype": "float32", "use_cpu": "true", "max_length": 128, "max_steps": 8, "save_steps": 8,
            "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-3,
            "logging_steps": 1, "dataloader_num_workers": 0, "output_dir": self.output, "add_version": "false",
            "report_to": "none",
        }  # fmt: skip
        if self.plugin:
            flags |= {"plugin": "diloco", "diloco_island_id": island, "diloco_syncer": syncer, "diloco_heartbeat_s": 1}
        flags |= self.flags
        return [str(word) for name, value in flags.items() if value is not None for word in (f"--{name}", value)]

    def start(self, server: ForkServer, island: int = 0, syncer: str = "") -> RunningJob:
        environment = LONE if self.ranks == 1 else {}
        return server.start(self.words(island, syncer), self.ranks, env=environment)


def run_islands(server: ForkServer, syncer: SyncerProcess, jobs: Sequence[Job]) -> list[RunningJob]:
    """Run islands side by side to their good ends. One that fails ends the others."""
    running = [job.start(server, island, syncer.address) for island, job in enumerate(jobs)]
    for job in running:
        job.wait(TIMEOUT_S).check()
    return running


def records(output: Path) -> list[Path]:
    """The records of the checkpoints, in order of their steps."""
    return sorted(output.glob("checkpoint-*/diloco_record.json"), key=lambda file: int(file.parent.name[11:]))


def wait_for_record(output: Path, job: RunningJob) -> Path:
    """The newest checkpoint that has its record."""
    wait_until(lambda: job.finished or records(output), "a checkpoint with its record", within_s=START_S)
    assert not job.finished, "the island ended before its first save"
    return records(output)[-1].parent


def arrays(folder: Path, step: int = 8, file: str = "model.safetensors") -> dict[str, NDArray[Any]]:
    """Every tensor of a checkpoint (or of `folder` itself if it has the file); bf16 as FP32."""
    path = folder / file if (folder / file).exists() else folder / f"checkpoint-{step}" / file
    return {name: tensor.float().numpy() for name, tensor in load_file(path).items()}


def weights(folder: Path, step: int = 8, file: str = "model.safetensors") -> dict[str, bytes]:
    """Every tensor of a checkpoint, as bytes."""
    return {name: values.tobytes() for name, values in arrays(folder, step, file).items()}


def logged(output: Path) -> list[dict[str, Any]]:
    """The lines of `logging.jsonl` that tell of a step."""
    lines = [json.loads(line) for line in (output / "logging.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]
