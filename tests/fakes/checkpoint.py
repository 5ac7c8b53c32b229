"""Checkpoints of a fake island, in the order in which Megatron writes them: every rank's values, then the file that
names the newest checkpoint, then (not here) the sync record. A kill in between leaves what it leaves for real."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch

from tests.fakes.quadratic import QuadraticModel

NEWEST_FILE = "latest_checkpointed_iteration.txt"
KEEP = 2
"""Checkpoints kept; older ones are removed when a newer one is complete."""


def folder_of(out: Path, step: int) -> Path:
    return out / f"checkpoint-{step}"


def newest(out: Path) -> int:
    """The step of the newest complete checkpoint; 0: there is none."""
    path = out / NEWEST_FILE
    return int(path.read_text()) if path.exists() else 0


def write_values(folder: Path, model: QuadraticModel) -> None:
    """One rank's parts as flat float32, in the order of its boxes."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".values-{model.rank}"
    np.concatenate([model.parts[box].numpy() for box in sorted(model.parts)]).tofile(temporary)
    temporary.replace(folder / f"values-{model.rank}.bin")


def read_values(folder: Path, model: QuadraticModel) -> None:
    """Fill a rank's parts."""
    stream = torch.from_numpy(np.fromfile(folder / f"values-{model.rank}.bin", dtype=np.float32))
    boxes = sorted(model.parts)
    for box, values in zip(boxes, torch.split(stream, [box.elements for box in boxes]), strict=True):
        model.parts[box].copy_(values)


def name_newest(out: Path, step: int) -> None:
    """All ranks have written: this is the checkpoint to resume from. Older ones go."""
    temporary = out / f".{NEWEST_FILE}"
    temporary.write_text(f"{step}\n")
    temporary.replace(out / NEWEST_FILE)
    steps = sorted(int(path.name.rpartition("-")[2]) for path in out.glob("checkpoint-*"))
    for old in [other for other in steps if other <= step][:-KEEP]:
        shutil.rmtree(folder_of(out, old))
