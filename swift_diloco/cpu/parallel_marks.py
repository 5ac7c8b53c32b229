"""Marks the weights of Megatron's own tensor-parallel layers as cut over ranks, also when they are not initialised.

Megatron-Core 0.16.1 sets the mark (`tensor_model_parallel`) inside its initialisation; ms-swift 4.6.0 builds models
without it (`perform_initialization` false, the weights come from a checkpoint) and puts the mark back only for
Megatron-FSDP (`_ensure_fsdp_tensor_parallel_attributes`). Transformer Engine's layers always set it; the word embedding
and the output head are Megatron's own and stay without. An unmarked weight counts as a replica, so the gradient norm,
and clipping with it, sees only tensor-parallel rank 0's rows of both (seen: 6.146 instead of 6.437). The gradients
themselves are right.
"""

import functools
from types import ModuleType
from typing import Any

from swift_diloco.cpu.te.parameters import mark_tensor_parallel

MODULE = "megatron.core.tensor_parallel.layers"
CUT_DIMENSIONS = {"VocabParallelEmbedding": 0, "ColumnParallelLinear": 0, "RowParallelLinear": 1}


def mark_weights(layers: ModuleType) -> None:
    """Make the layer classes of `layers` mark their weights when they are created."""
    for name, dimension in CUT_DIMENSIONS.items():
        _mark_after_init(getattr(layers, name), dimension)


def _mark_after_init(layer: type, dimension: int) -> None:
    original = layer.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.weight is not None and not hasattr(self.weight, "tensor_model_parallel"):
            mark_tensor_parallel(self.weight, dimension)

    setattr(layer, "__init__", __init__)  # noqa: B010 - a method is replaced on purpose
