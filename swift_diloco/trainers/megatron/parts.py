"""Where the elements of a rank's local parameters lie in the global tensors, on plain integers.

A *part* says: this flat range of this local parameter is this box of that global tensor. Megatron's own sharded state
dict tells the parts (`sharded_state.py`); the optimizer tells which flat ranges of which parameters have an FP32 master
on this rank (`masters.py`); cutting one by the other gives the boxes that the rank owns. Knows no tensors, no Megatron
and no ranks.

Invariants: the parts of one parameter tile it exactly once; a part may stick out of its global tensor in the first
dimension only (vocabulary rows that were added for an even split), and what sticks out belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import msgspec

from swift_diloco.core.errors import UserError
from swift_diloco.core.layout.boxes import flat_range_boxes
from swift_diloco.core.layout.tensors import Index, TensorSpec


class Part(msgspec.Struct, frozen=True):
    """The flat range [begin, end) of a local parameter, and the box of a global tensor that it is."""

    begin: int
    end: int
    spec: TensorSpec
    start: Index
    """First element of the box in the global tensor."""
    shape: Index
    """Shape of the box, as large as the local data: it may stick out of `spec.shape` in dimension 0."""
    main: bool
    """Whether this is the copy that speaks for the tensor among ranks that hold the same part (other than over DP)."""
    main_over_dp: bool
    """Whether this rank speaks for it among its data-parallel copies too."""


class Cut(msgspec.Struct, frozen=True):
    """A contiguous run of a local parameter that is one box of a global tensor."""

    begin: int
    """First element in the flat local parameter."""
    start: Index
    shape: Index

    @property
    def elements(self) -> int:
        return prod(self.shape)


def check_parts(name: str, elements: int, parts: Sequence[Part]) -> None:
    """Raise `UserError` unless `parts`, sorted by `begin`, tile the `elements` of parameter `name` exactly once."""
    position = 0
    for part in parts:
        if part.begin != position:
            break
        position = part.end
    if position != elements:
        raise UserError(
            f"parameter {name!r} has {elements} elements, of which Megatron's sharded state dict describes the first "
            f"{position} once and in order; expected all of them; this model cannot be trained on islands yet: freeze "
            "the parameter or report the model"
        )


def cuts(part: Part, begin: int, end: int) -> Iterator[Cut]:
    """What of the local flat range [begin, end) is in `part`, as boxes of the global tensor in flat order."""
    low, high = max(begin, part.begin), min(end, part.end)
    if low >= high:
        return
    position = low
    for inner, shape in flat_range_boxes(part.shape, low - part.begin, high - part.begin):
        start = tuple(a + b for a, b in zip(part.start, inner, strict=True))
        inside = _inside(part.spec, start, shape)
        if inside is not None:
            yield Cut(position, start, inside)
        position += prod(shape)


def _inside(spec: TensorSpec, start: Index, shape: Index) -> Index | None:
    """The shape of what of the box is in the global tensor, a prefix of it in flat order; None if nothing is."""
    if not shape:
        return shape
    rows = min(shape[0], spec.shape[0] - start[0])
    return (rows, *shape[1:]) if rows > 0 else None
