"""Boxes: N-d slices of global tensors, and whether those of an island tile the layout exactly once."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import msgspec

from swift_diloco.core.layout.tensors import Index, Layout

RANK_BOXES_MAX = 4_000_000
"""Most boxes one rank may announce: a flat range of a tensor needs a handful, and a rank owns at
most TENSORS_MAX ranges."""


class Box(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A part of one global tensor: the elements `start[d] <= i[d] < start[d] + shape[d]` of tensor number `tensor`."""

    tensor: int
    start: Index
    shape: Index

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        if len(self.start) != len(self.shape):
            return f"[start {list(self.start)}, shape {list(self.shape)}]"
        ranges = ", ".join(f"{s}:{s + n}" for s, n in zip(self.start, self.shape, strict=True))
        return f"[{ranges}]"


def overlap(a: Box, b: Box) -> Box | None:
    """The elements that two boxes share; None when there are none."""
    if a.tensor != b.tensor:
        return None
    start = tuple(max(s, t) for s, t in zip(a.start, b.start, strict=True))
    end = tuple(min(s + n, t + m) for s, n, t, m in zip(a.start, a.shape, b.start, b.shape, strict=True))
    if any(e <= s for s, e in zip(start, end, strict=True)):
        return None
    return Box(a.tensor, start, tuple(e - s for s, e in zip(start, end, strict=True)))


def slices(part: Box, whole: Box) -> tuple[slice, ...]:
    """Where `part` lies in an array of the elements of `whole`, which has all of it."""
    return tuple(slice(s - w, s - w + n) for s, n, w in zip(part.start, part.shape, whole.start, strict=True))


def flat_range_boxes(shape: Index, begin: int, end: int) -> list[tuple[Index, Index]]:
    """The row-major flat range [begin, end) of a tensor of `shape`, as (start, shape) boxes in flat order.

    A range needs at most 2·ndim − 1 boxes: a ragged head, whole rows, a ragged tail, and the same again inside a row.
    """
    if not 0 <= begin <= end <= prod(shape):
        raise ValueError(f"range [{begin}, {end}) is not inside a tensor of {prod(shape)} elements")
    if begin == end:
        return []
    if not shape:
        return [((), ())]
    row = prod(shape[1:])
    first, last = begin // row, (end - 1) // row
    if first == last:
        inner = flat_range_boxes(shape[1:], begin - first * row, end - first * row)
        return [((first, *start), (1, *size)) for start, size in inner]
    boxes: list[tuple[Index, Index]] = []
    if begin % row:
        inner = flat_range_boxes(shape[1:], begin % row, row)
        boxes += [((first, *start), (1, *size)) for start, size in inner]
        first += 1
    whole = end // row
    if whole > first:
        boxes.append(((first, *(0 for _ in shape[1:])), (whole - first, *shape[1:])))
    if end % row:
        inner = flat_range_boxes(shape[1:], 0, end % row)
        boxes += [((whole, *start), (1, *size)) for start, size in inner]
    return boxes


def tiling_fault(layout: Layout, boxes: Iterable[Box]) -> str | None:
    """In words, the first reason why `boxes` do not cover every element of the layout exactly once; None
    when they do."""
    by_tensor: dict[int, list[Box]] = {}
    for box in boxes:
        if fault := box_fault(layout, box):
            return fault
        by_tensor.setdefault(box.tensor, []).append(box)
    for i, spec in enumerate(layout.tensors):
        rest = [Box(i, tuple(0 for _ in spec.shape), spec.shape)]
        for box in sorted(by_tensor.get(i, [])):
            left = [piece for region in rest for piece in _subtract(region, box)]
            if sum(r.elements for r in rest) - sum(r.elements for r in left) != box.elements:
                return f"tensor {spec.name!r}: box {box} overlaps another one"
            rest = left
        if rest:
            return f"tensor {spec.name!r}: nobody owns {min(rest)}"
    return None


def box_fault(layout: Layout, box: Box) -> str | None:
    """In words, why `box` is no box of the layout; None when it is one."""
    if not 0 <= box.tensor < len(layout.tensors):
        return f"box {box} is of tensor number {box.tensor}; the layout has {len(layout.tensors)}"
    spec = layout.tensors[box.tensor]
    inside = len(box.start) == len(box.shape) == len(spec.shape) and all(
        s >= 0 and n > 0 and s + n <= size for s, n, size in zip(box.start, box.shape, spec.shape, strict=True)
    )
    return None if inside else f"tensor {spec.name!r}: box {box} is not inside shape {list(spec.shape)}"


def _subtract(region: Box, hole: Box) -> list[Box]:
    """What of `region` lies outside `hole`, as disjoint boxes (slabs peeled off dimension by dimension)."""
    inner = overlap(region, hole)
    if inner is None:
        return [region]
    start, shape, pieces = list(region.start), list(region.shape), []
    for d, (low, size) in enumerate(zip(inner.start, inner.shape, strict=True)):
        high, end = low + size, start[d] + shape[d]
        if low > start[d]:
            pieces.append(Box(region.tensor, tuple(start), (*shape[:d], low - start[d], *shape[d + 1 :])))
        if high < end:
            above = (*start[:d], high, *start[d + 1 :])
            pieces.append(Box(region.tensor, above, (*shape[:d], end - high, *shape[d + 1 :])))
        start[d], shape[d] = low, size
    return pieces
