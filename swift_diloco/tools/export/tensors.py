"""The global tensors of a syncer's checkpoint, by name: the fragments put together again.

Knows checkpoints and layouts, no trainer and no format of models.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.files.checkpoint_files import Intact, read_newest

MEGATRON = ("embedding.", "decoder.", "output_layer.")
"""How the names of Megatron's tensors begin; those of transformers begin otherwise."""


def tensors_of(intact: Intact) -> dict[str, NDArray[np.float32]]:
    """Every global tensor in its shape; views, no copies."""
    tensors: dict[str, NDArray[np.float32]] = {}
    for group, values in zip(intact.shape.plan.fragments, intact.values, strict=True):
        begin = 0
        for number in group:
            spec = intact.shape.layout.tensors[number]
            tensors[spec.name] = values[begin : begin + spec.elements].reshape(spec.shape)
            begin += spec.elements
    return tensors


def load_tensors(folder: Path) -> tuple[dict[str, NDArray[np.float32]], str]:
    """The tensors of the newest intact checkpoint, and which one that is, in words."""
    intact = read_newest(folder)
    state = intact.state
    what = f"outer step {state.step}{', the final cut' if state.final else ''} of run {state.run}"
    notes = "".join(f"; not used: {fault}" for fault in intact.skipped)
    return tensors_of(intact), what + notes


def is_megatron(names: list[str]) -> bool:
    """Whether the islands were Megatron jobs: their tensors have Megatron's names."""
    return any(name.startswith(MEGATRON) for name in names)
