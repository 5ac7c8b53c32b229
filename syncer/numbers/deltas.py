"""Deltas as the syncer keeps them until they are merged: flat float32, or still encoded as they travelled.

An encoded delta is a fraction of the fragment, and is decoded part by part while it is merged, so that the memory
of a round is its members' encoded deltas and not their float32. Knows streams, encodings and arrays, and nothing of
islands, rounds or messages.

Invariants: a chunk is written once, whole, to its own place; `read` gives the same floats whatever the range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.formats import chunks
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS, Encoding
from swift_diloco.core.formats.frames import Buffer
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.tensors import Index
from swift_diloco.core.numbers import codec
from syncer.numbers.buffers import ValueBuffers
from syncer.numbers.fragment_stream import FragmentStream

F32_BYTES = 4


class Delta(Protocol):
    """A whole delta of one fragment."""

    @property
    def elements(self) -> int:
        """Elements of the fragment."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory it holds."""
        ...

    def read(self, tensors: tuple[int, int], span: tuple[int, int], out: NDArray[np.float32]) -> None:
        """Write the floats of the fragment's tensors [first, last) to `out`; `span` is where they lie in it."""
        ...


@dataclass(frozen=True, eq=False)
class FlatDelta:
    """Float32, flat in layout order."""

    values: NDArray[np.float32]

    @property
    def elements(self) -> int:
        return int(self.values.size)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def read(self, tensors: tuple[int, int], span: tuple[int, int], out: NDArray[np.float32]) -> None:
        out[:] = self.values[slice(*span)]


@dataclass(frozen=True, eq=False)
class _Part:
    """The encoded stream of one rank, all its chunks one after the other."""

    stream: FragmentStream
    payload: NDArray[np.uint8]
    boxes: Mapping[int, Sequence[tuple[int, Box]]]
    """Boxes of each tensor, by its number in the layout, with the place in the stream where each begins."""

    def range(self, tensor: int) -> tuple[int, int]:
        """The stream range of a tensor."""
        boxes = self.boxes[tensor]
        (first, _), (last, box) = boxes[0], boxes[-1]
        return first, last + box.elements


class EncodedDelta:
    """The encoded streams of an island's ranks. `tensors` are the fragment's tensors, by number, in its order."""

    def __init__(
        self,
        streams: Mapping[int, FragmentStream],
        encoding: Encoding,
        tensors: Sequence[int],
        buffers: ValueBuffers,
    ) -> None:
        self.encoding = encoding
        self._tensors = tuple(tensors)
        self._chunk_bytes = chunks.encoded_bytes(CHUNK_ELEMENTS, encoding)
        self.elements = sum(stream.elements for stream in streams.values())
        sizes = {rank: stream_bytes(stream.elements, encoding) for rank, stream in streams.items()}
        self.nbytes = sum(sizes.values())
        storage = buffers.take(max(1, -(-self.nbytes // F32_BYTES))).view(np.uint8)
        self._parts: dict[int, _Part] = {}
        begin = 0
        for rank, stream in streams.items():
            self._parts[rank] = _Part(stream, storage[begin : begin + sizes[rank]], stream.tensor_boxes())
            begin += sizes[rank]

    def put(self, rank: int, index: int, payload: Buffer) -> None:
        """Keep a chunk, whose size was checked."""
        begin = index * self._chunk_bytes
        self._parts[rank].payload[begin : begin + len(payload)] = np.frombuffer(payload, np.uint8)

    def read(self, tensors: tuple[int, int], span: tuple[int, int], out: NDArray[np.float32]) -> None:
        wanted = self._tensors[slice(*tensors)]
        for part in self._parts.values():
            for begin, end in _merged(part.range(tensor) for tensor in wanted if tensor in part.boxes):
                self._decode(part, begin, end, out, span[0])

    def row_elements(self, tensor: int) -> int:
        """Elements of one row of one of the fragment's tensors."""
        part = next(iter(self._parts.values()))
        return row_elements(part.stream.tensor_shape(self._tensors[tensor]))

    def read_rows(self, tensor: int, rows: tuple[int, int], out: NDArray[np.float32]) -> None:
        """Write rows [first, last) of one of the fragment's tensors to `out`."""
        number, (first, last) = self._tensors[tensor], rows
        for part in self._parts.values():
            base = part.stream.tensor_offset(number) + first * row_elements(part.stream.tensor_shape(number))
            for begin, box in part.boxes.get(number, ()):
                start, size = (box.start[0], box.shape[0]) if box.shape else (0, 1)
                low, high = max(first, start), min(last, start + size)
                if low < high:
                    inner = row_elements(box.shape)
                    self._decode(part, begin + (low - start) * inner, begin + (high - start) * inner, out, base)

    def flat(self, buffers: ValueBuffers) -> NDArray[np.float32]:
        """All of it as float32, in layout order."""
        values = buffers.take(self.elements)
        self.read((0, len(self._tensors)), (0, self.elements), values)
        return values

    def _decode(self, part: _Part, begin: int, end: int, out: NDArray[np.float32], base: int) -> None:
        """Write the stream range [begin, end) of a rank to its places in `out`, which begins at element `base`."""
        stream = part.stream
        room = np.empty(min(CHUNK_ELEMENTS, stream.elements), np.float32)
        for index in range(begin // CHUNK_ELEMENTS, chunks.chunk_count(end)):
            size = chunks.chunk_elements(stream.elements, index)
            at = index * self._chunk_bytes
            payload = part.payload[at : at + chunks.encoded_bytes(size, self.encoding)]
            codec.decode(payload, self.encoding, room[:size])
            first = index * CHUNK_ELEMENTS
            low, high = max(begin, first), min(end, first + size)
            stream.scatter(room[low - first : high - first], low, out, base)


def flat_values(delta: Delta, buffers: ValueBuffers) -> NDArray[np.float32]:
    """A delta as float32, flat in layout order; decoded for the caller where it is kept encoded."""
    if isinstance(delta, EncodedDelta):
        return delta.flat(buffers)
    assert isinstance(delta, FlatDelta)
    return delta.values


def stream_bytes(elements: int, encoding: Encoding) -> int:
    """Bytes of a whole encoded stream."""
    count = chunks.chunk_count(elements)
    return sum(chunks.encoded_bytes(chunks.chunk_elements(elements, k), encoding) for k in range(count))


def row_elements(shape: Index) -> int:
    """Elements of one row: all dimensions but the first."""
    return prod(shape[1:])


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Adjoining ranges as one."""
    result: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if result and result[-1][1] == begin:
            result[-1] = (result[-1][0], end)
        else:
            result.append((begin, end))
    return result
