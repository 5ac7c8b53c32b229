"""A model that is trained by halving its distance to a target, cut over ranks in every way Megatron cuts.

Step: theta <- theta - lr (theta - target), elementwise in float32, so the values after n steps are known on paper:
target + (start - target)(1 - lr)^n.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from swift_diloco.core.layout.boxes import Box, flat_range_boxes
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout, TensorSpec

SPECS = (
    TensorSpec("embedding.word_embeddings.weight", (24, 8), "avg"),
    TensorSpec("decoder.layers.0.mlp.linear_fc1.weight", (16, 8), "rda"),
    TensorSpec("decoder.layers.1.mlp.linear_fc1.weight", (16, 8), "rda"),
    TensorSpec("decoder.layers.0.input_layernorm.weight", (8,), "rda"),
    TensorSpec("output_layer.weight", (24, 8), "avg"),
)
"""A small model; `scaled` makes larger ones."""


def scaled(elements: int, tensors: int = 8) -> tuple[TensorSpec, ...]:
    """A model of about `elements` elements in `tensors` equal tensors."""
    rows = max(8, elements // tensors // 256)
    return tuple(TensorSpec(f"decoder.layers.{i}.weight", (rows, 256), "rda") for i in range(tensors))


def cut(spec: TensorSpec, number: int, rank: int, ranks: int) -> list[Box]:
    """The boxes of tensor `number` that `rank` of `ranks` owns: by rows, by columns or by flat range, as
    the number says."""
    share = [spec.elements * r // ranks for r in range(ranks + 1)]
    zeros = tuple(0 for _ in spec.shape)
    if number % 3 == 2 or len(spec.shape) == 1 or spec.shape[number % 3] % ranks:
        ranges = flat_range_boxes(spec.shape, share[rank], share[rank + 1])
        return [Box(number, start, shape) for start, shape in ranges]
    axis = number % 3
    size = spec.shape[axis] // ranks
    start = tuple(rank * size if d == axis else 0 for d in range(len(zeros)))
    shape = tuple(size if d == axis else n for d, n in enumerate(spec.shape))
    return [Box(number, start, shape)]


class QuadraticModel:
    """`ModelPieces` of one rank. `start` and `target` are constants over the whole model."""

    def __init__(
        self, rank: int, ranks: int, *, start: float, target: float, specs: Sequence[TensorSpec] = SPECS
    ) -> None:
        self.rank, self.ranks = rank, ranks
        self.start, self.target = start, target
        self._specs = tuple(specs)
        self.parts: dict[Box, torch.Tensor] = {}
        self.pieces: PieceMap
        self.writes = 0
        self.watch: Callable[[str], None] = lambda what: None
        """Told `read` and `write` when either begins."""
        self.resume: Callable[[QuadraticModel, Layout], None] = lambda model, layout: None
        """Fills the parts from a checkpoint, once they are there."""

    def specs(self) -> Sequence[TensorSpec]:
        return self._specs

    def boxes(self, layout: Layout) -> Sequence[Box]:
        for number, spec in enumerate(layout.tensors):
            for box in cut(spec, number, self.rank, self.ranks):
                self.parts[box] = torch.full((box.elements,), self.start)
        self.resume(self, layout)
        return tuple(self.parts)

    def bind(self, pieces: PieceMap) -> None:
        self.pieces = pieces

    def read(self, fragment: int, out: torch.Tensor) -> None:
        self.watch("read")
        boxes = self.pieces.fragment_boxes(fragment)
        if boxes:
            torch.cat([self.parts[box] for box in boxes], out=out)

    def write(self, values: Mapping[int, torch.Tensor]) -> None:
        self.writes += 1
        self.watch("write")
        for fragment, stream in values.items():
            parts = torch.split(stream, [box.elements for box in self.pieces.fragment_boxes(fragment)])
            for box, part in zip(self.pieces.fragment_boxes(fragment), parts, strict=True):
                self.parts[box].copy_(part)

    def spread(self, fragments: Collection[int]) -> None:
        """No rank has copies of another's parts."""

    def train(self, lr: float) -> None:
        """One local step."""
        for part in self.parts.values():
            part.sub_((part - self.target) * lr)


def where(box: Box) -> tuple[slice, ...]:
    """The place of a box in its tensor."""
    return tuple(slice(start, start + size) for start, size in zip(box.start, box.shape, strict=True))


def whole_of(parts: Mapping[Box, NDArray[np.float32]], layout: Layout) -> list[NDArray[np.float32]]:
    """Global tensors by number; every element must be in a part."""
    whole = [np.full(spec.shape, np.nan, dtype=np.float32) for spec in layout.tensors]
    for box, values in parts.items():
        whole[box.tensor][where(box)] = values.reshape(box.shape)
    assert not any(np.isnan(tensor).any() for tensor in whole), "some elements are in no part"
    return whole


def whole_tensors(layout: Layout, models: Sequence[QuadraticModel]) -> dict[str, NDArray[np.float32]]:
    """The global tensors put together from all ranks' parts."""
    parts = {box: part.numpy() for model in models for box, part in model.parts.items()}
    return dict(zip((spec.name for spec in layout.tensors), whole_of(parts, layout), strict=True))
