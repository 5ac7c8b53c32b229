"""How the stand-in layers create parameters: dtype, device, initialisation under an RNG tracker, parallel marks.

Invariant: a parameter that is cut over tensor-parallel ranks says so by `tensor_model_parallel`, and one that is
replicated but sees only a part of the sequence says so by `sequence_parallel`; Megatron sums gradients and norms by
these two marks.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

InitMethod = Callable[[torch.Tensor], object]


@dataclass(frozen=True)
class Initialiser:
    """Fills a new weight: `method` runs inside the tracker's fork, so that each TP rank draws its own numbers."""

    method: InitMethod | None = None
    get_tracker: Callable[[], Any] | None = None
    tracker_name: str | None = None

    def fill(self, weight: torch.Tensor) -> None:
        if self.method is None or weight.is_meta:
            return
        with self._fork(), torch.no_grad():
            self.method(weight)

    def _fork(self) -> AbstractContextManager[None]:
        if self.get_tracker is None:
            return nullcontext()
        names = () if self.tracker_name is None else (self.tracker_name,)
        fork: AbstractContextManager[None] = self.get_tracker().fork(*names)
        return fork


def new_parameter(
    shape: tuple[int, ...], dtype: torch.dtype | None, device: object, fill: float | None = None
) -> torch.nn.Parameter:
    """A parameter on the CPU (or on the meta device); without `fill` its values are for the caller to set."""
    where = "meta" if str(device) == "meta" else "cpu"
    values = torch.empty(shape, dtype=dtype or torch.get_default_dtype(), device=where)
    if fill is not None:
        values.fill_(fill)
    return torch.nn.Parameter(values)


def mark_tensor_parallel(parameter: torch.nn.Parameter, dimension: int) -> None:
    """Say that `parameter` is one rank's cut along `dimension` (attributes of megatron.core.tensor_parallel.layers)."""
    setattr(parameter, "tensor_model_parallel", True)  # noqa: B010 - not an attribute that torch's types know
    setattr(parameter, "partition_dim", dimension)  # noqa: B010
    setattr(parameter, "partition_stride", 1)  # noqa: B010


def mark_sequence_parallel(parameter: torch.nn.Parameter, sequence_parallel: bool) -> None:
    """Say whether `parameter` is replicated over TP ranks while each of them sees only its part of the sequence."""
    setattr(parameter, "sequence_parallel", sequence_parallel)  # noqa: B010
