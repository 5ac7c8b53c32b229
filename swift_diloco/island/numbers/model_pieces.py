"""What an island needs of its trainer: the FP32 values this rank owns, and a way for its ranks to agree.

Two protocols. A trainer (Megatron, transformers, a test's quadratic) implements them; the island knows nothing
else of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import torch

from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout, TensorSpec


class ModelPieces(Protocol):
    """The FP32 values of the model that this rank owns, read and written in the order of its streams.

    Life: `specs` on every rank, gathered to one layout; `boxes` of that layout; `bind` once the fragments are
    known; then `read`, `write` and `spread` at step boundaries. Every global element is owned by exactly one rank; a
    rank may own nothing.
    """

    def specs(self) -> Sequence[TensorSpec]:
        """The global tensors of which this rank holds any part, in any order."""
        ...

    def boxes(self, layout: Layout) -> Sequence[Box]:
        """The boxes whose FP32 values this rank owns."""
        ...

    def bind(self, pieces: PieceMap) -> None:
        """Learn the fragments. Called once before `read` and `write`, and again when the syncer assigns other
        fragments."""
        ...

    def read(self, fragment: int, out: torch.Tensor) -> None:
        """Copy the present FP32 values of the rank's stream of `fragment` into `out` (f32, CPU,
        `pieces.elements(fragment)`)."""
        ...

    def write(self, values: Mapping[int, torch.Tensor]) -> None:
        """Give what this rank owns new FP32 values (fragment -> f32 CPU stream). Not collective: whatever goes wrong
        here leaves no other rank in a collective, and is voted on before `spread`."""
        ...

    def spread(self, fragments: Collection[int]) -> None:
        """Carry the values written to these fragments to the copies of other ranks, and into the low-precision
        parameters that the next step reads.

        Collective: every rank of the island calls it at the same boundary for the same fragments.
        """
        ...
