"""Checkpoints of a fake island, in the order in which Megatron writes them: every rank's values, then the file that
names the newest checkpoint, then (not here) the sync record. A kill in between leaves what it leaves for real.

They are loaded under any other cut: a file says of which boxes its values are.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.tensors import Layout
from tests.fakes.quadratic import QuadraticModel, where, whole_of

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
    """One rank's parts, in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".values-{model.rank}"
    keyed = {json.dumps([box.tensor, box.start, box.shape]): part.numpy() for box, part in model.parts.items()}
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **keyed)
    temporary.replace(folder / f"values-{model.rank}.npz")


def read_values(folder: Path, model: QuadraticModel, layout: Layout) -> None:
    """Fill a rank's parts from all ranks' files."""
    parts: dict[Box, NDArray[np.float32]] = {}
    for path in sorted(folder.glob("values-*.npz")):
        with np.load(path) as file:
            for key in file.files:
                number, start, shape = json.loads(key)
                parts[Box(number, tuple(start), tuple(shape))] = file[key]
    whole = whole_of(parts, layout)
    for box, part in model.parts.items():
        part.copy_(torch.from_numpy(whole[box.tensor][where(box)].reshape(-1)))


def name_newest(out: Path, step: int) -> None:
    """All ranks have written: this is the checkpoint to resume from. Older ones go."""
    temporary = out / f".{NEWEST_FILE}"
    temporary.write_text(f"{step}\n")
    temporary.replace(out / NEWEST_FILE)
    steps = sorted(int(path.name.rpartition("-")[2]) for path in out.glob("checkpoint-*"))
    for old in [other for other in steps if other <= step][:-KEEP]:
        shutil.rmtree(folder_of(out, old))
