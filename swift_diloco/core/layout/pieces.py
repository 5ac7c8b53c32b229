"""Pieces: the boxes that one rank owns, as streams of elements per fragment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import prod

import msgspec

from swift_diloco.core.layout.boxes import Box, flat_range_boxes
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import Layout


class Span(msgspec.Struct, frozen=True):
    """Consecutive elements of a rank's stream and the box of a global tensor that they are."""

    offset: int
    """First element in the stream, counted from the beginning of the requested range."""
    box: Box


class PieceMap:
    """Where each element of a rank's streams lies in the model. One per rank; pure, immutable after construction."""

    def __init__(self, layout: Layout, plan: FragmentPlan, boxes: Iterable[Box]) -> None:
        self.layout = layout
        self.plan = plan
        self.boxes = tuple(sorted(boxes))
        fragment_of = {tensor: f for f, group in enumerate(plan.fragments) for tensor in group}
        self._boxes: list[list[Box]] = [[] for _ in plan.fragments]
        for box in self.boxes:
            self._boxes[fragment_of[box.tensor]].append(box)
        self._ends: list[list[int]] = []
        for group in self._boxes:
            ends, total = [], 0
            for box in group:
                total += box.elements
                ends.append(total)
            self._ends.append(ends)

    def fragment_boxes(self, fragment: int) -> Sequence[Box]:
        """The rank's boxes of one fragment, in stream order."""
        return self._boxes[fragment]

    def elements(self, fragment: int) -> int:
        """Elements in the rank's stream of one fragment (0: the rank owns nothing of it)."""
        return self._ends[fragment][-1] if self._ends[fragment] else 0

    def spans(self, fragment: int, begin: int, end: int) -> list[Span]:
        """The stream range [begin, end) as boxes of global tensors, in stream order."""
        if not 0 <= begin <= end <= self.elements(fragment):
            raise ValueError(f"range [{begin}, {end}) is not inside a stream of {self.elements(fragment)} elements")
        spans: list[Span] = []
        ends, position = self._ends[fragment], begin
        i = bisect_right(ends, begin)
        while position < end:
            box = self._boxes[fragment][i]
            base = ends[i] - box.elements
            stop = min(end, ends[i])
            for start, shape in flat_range_boxes(box.shape, position - base, stop - base):
                moved = tuple(a + b for a, b in zip(box.start, start, strict=True))
                spans.append(Span(position - begin, Box(box.tensor, moved, shape)))
                position += prod(shape)
            i += 1
        return spans
