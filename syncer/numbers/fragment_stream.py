"""Moves elements between a rank's stream of a fragment and the fragment's flat values (numpy).

The geometry is `core/layout`'s; this module only turns it into array copies. It knows nothing of messages, encodings or
who the rank is.

Invariants:
* `gather` and `scatter` are inverse: what one rank scatters, the same rank gathers bit for bit;
* no element outside the rank's boxes is read or written;
* nothing is copied to learn where a range lies (`contiguous`).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.fragments import tensor_offsets
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Index

Array = NDArray[Any]


class FragmentStream:
    """The stream of one rank of one fragment, over flat values of that fragment in layout order. Immutable."""

    def __init__(self, pieces: PieceMap, fragment: int) -> None:
        self.fragment = fragment
        self.elements = pieces.elements(fragment)
        self._pieces = pieces
        self._offsets = tensor_offsets(pieces.layout, pieces.plan, fragment)
        self._whole = self._one_run(0, self.elements)

    def contiguous(self, begin: int, end: int) -> slice | None:
        """Where the stream range [begin, end) lies in the flat values, when it is one run there; else None."""
        if self._whole is not None:
            self._check(begin, end)
            return slice(self._whole.start + begin, self._whole.start + end)
        return self._one_run(begin, end)

    def gather(self, flat: Array, begin: int, out: Array) -> None:
        """Copy the stream range [begin, begin + out.size) of `flat` into `out` (1-D, contiguous)."""
        run = self.contiguous(begin, begin + out.size)
        if run is not None:
            out[:] = flat[run]
            return
        for position, box in self._spans(begin, begin + out.size):
            part = out[position : position + box.elements]
            part.reshape(box.shape)[...] = self._view(flat, box)

    def scatter(self, values: Array, begin: int, flat: Array, base: int = 0) -> None:
        """Write `values`, the stream range that begins at `begin`, to their places in `flat`, whose first element is
        number `base` of the fragment."""
        run = self.contiguous(begin, begin + values.size)
        if run is not None:
            flat[run.start - base : run.stop - base] = values
            return
        for position, box in self._spans(begin, begin + values.size):
            self._view(flat, box, base)[...] = values[position : position + box.elements].reshape(box.shape)

    def tensor_boxes(self) -> dict[int, list[tuple[int, Box]]]:
        """The rank's boxes of each tensor, with the place in the stream where each begins."""
        boxes: dict[int, list[tuple[int, Box]]] = {}
        position = 0
        for box in self._pieces.fragment_boxes(self.fragment):
            boxes.setdefault(box.tensor, []).append((position, box))
            position += box.elements
        return boxes

    def tensor_offset(self, tensor: int) -> int:
        """Where a tensor of the fragment begins in its flat values."""
        return self._offsets[tensor]

    def tensor_shape(self, tensor: int) -> Index:
        """The global shape of a tensor."""
        return self._pieces.layout.tensors[tensor].shape

    def _check(self, begin: int, end: int) -> None:
        if not 0 <= begin <= end <= self.elements:
            raise ValueError(f"range [{begin}, {end}) is not inside a stream of {self.elements} elements")

    def _spans(self, begin: int, end: int) -> list[tuple[int, Box]]:
        return [(span.offset, span.box) for span in self._pieces.spans(self.fragment, begin, end)]

    def _one_run(self, begin: int, end: int) -> slice | None:
        start: int | None = None
        for position, box in self._spans(begin, end):
            shape = self._shape(box)
            if not is_one_run(shape, box):
                return None
            at = self._offsets[box.tensor] + flat_index(shape, box.start)
            if start is None:
                start = at
            elif at != start + position:
                return None
        return None if start is None else slice(start, start + end - begin)

    def _shape(self, box: Box) -> Index:
        return self.tensor_shape(box.tensor)

    def _view(self, flat: Array, box: Box, base: int = 0) -> Array:
        """The elements of a box as an N-d view of the flat values, which begin at element `base`: between tensors, or
        between two rows of this one."""
        shape, offset = self._shape(box), self._offsets[box.tensor] - base
        start = box.start
        if offset < 0 or offset + prod(shape) > flat.size:
            row = prod(shape[1:])
            skipped, offset = max(0, -offset) // row, max(0, offset)
            rows = min(shape[0] - skipped, (flat.size - offset) // row)
            shape, start = (rows, *shape[1:]), (start[0] - skipped, *start[1:])
        tensor = flat[offset : offset + prod(shape)].reshape(shape)
        # The ellipsis makes it a view also of a tensor without dimensions.
        where: tuple[Any, ...] = tuple(slice(s, s + n) for s, n in zip(start, box.shape, strict=True))
        view: Array = tensor[(*where, ...)]
        return view


def flat_index(shape: Index, index: Index) -> int:
    """Row-major position of `index` in a tensor of `shape`."""
    position = 0
    for size, i in zip(shape, index, strict=True):
        position = position * size + i
    return position


def is_one_run(shape: Index, box: Box) -> bool:
    """Whether the elements of a box lie one after the other in the row-major tensor: after its first dimension that is
    longer than 1, every dimension is whole."""
    cut = next((d for d, n in enumerate(box.shape) if n > 1), len(shape))
    return all(n == size for n, size in zip(box.shape[cut + 1 :], shape[cut + 1 :], strict=True))


def empty_values(elements: int) -> NDArray[np.float32]:
    """Room for flat values. What is in it is not defined."""
    return np.empty(elements, np.float32)
