"""Export where the islands' tensors have the names of transformers: the base model with the trained tensors replaced.

Each safetensors file of the base is read, its trained tensors are exchanged in the type they have there, and it is
written to the new folder; everything else of the base is copied. So the result loads like the base.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.whole_files import replaced

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
"""Endings of files with weights; those that are no safetensors are left out of an export."""


def export_plain(tensors: Mapping[str, NDArray[np.float32]], base: Path, out: Path) -> int:
    """Write the export; how many tensors were exchanged. Raises `UserError` before anything is written."""
    files = sorted(base.glob("*.safetensors"))
    check_names(tensors, files, base)
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(base.iterdir()):
        if path.is_file() and not path.name.endswith(WEIGHTS):
            with replaced(out / path.name) as temporary:
                shutil.copy2(path, temporary)
    exchanged = 0
    for path in files:
        found = load_file(path)
        for name in found.keys() & tensors.keys():
            found[name] = torch.from_numpy(tensors[name].copy()).to(found[name].dtype)
            exchanged += 1
        with replaced(out / path.name) as temporary:
            save_file(found, temporary, metadata={"format": "pt"})
    return exchanged


def check_names(tensors: Mapping[str, NDArray[np.float32]], files: list[Path], base: Path) -> None:
    """Every trained tensor must be in the base, in its shape."""
    if not files:
        raise UserError(f"--hf {base} has no .safetensors files; give the folder of the model the islands started from")
    shapes: dict[str, tuple[int, ...]] = {}
    for path in files:
        with safe_open(path, "np") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    for name, tensor in tensors.items():
        if name not in shapes:
            raise UserError(
                f"the checkpoint has a tensor {name!r}, which --hf {base} has not; give the folder of the model (or of "
                "the adapter) that the islands trained"
            )
        if shapes[name] != tensor.shape:
            raise UserError(
                f"tensor {name!r} has shape {list(tensor.shape)} in the checkpoint and {list(shapes[name])} in --hf "
                f"{base}; give the folder of the model that the islands trained"
            )
