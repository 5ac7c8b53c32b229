"""Reads the training log (`logging.jsonl`) that ms-swift writes below its output folder."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StepLog:
    """One logged step."""

    iteration: int
    loss: float
    grad_norm: float
    learning_rate: float


def read_steps(output_dir: Path) -> list[StepLog]:
    """The steps of the newest run below `output_dir`, in order of iteration; `megatron sft` and `swift sft` alike."""
    files = sorted(output_dir.rglob("logging.jsonl"), key=lambda file: file.stat().st_mtime_ns)
    if not files:
        raise FileNotFoundError(f"no logging.jsonl below {output_dir}; did the run get to its first step?")
    lines = (json.loads(line) for line in files[-1].read_text().splitlines())
    steps = [_step(line) for line in lines if "loss" in line]
    return sorted(steps, key=lambda step: step.iteration)


def losses(steps: list[StepLog]) -> list[float]:
    return [step.loss for step in steps]


def grad_norms(steps: list[StepLog]) -> list[float]:
    return [step.grad_norm for step in steps]


def _step(line: dict[str, object]) -> StepLog:
    progress = str(line.get("iteration") or line["global_step/max_steps"])  # "3/8"
    return StepLog(
        iteration=int(progress.partition("/")[0]),
        loss=float(str(line["loss"])),
        grad_norm=float(str(line["grad_norm"])),
        learning_rate=float(str(line["learning_rate"])),
    )
