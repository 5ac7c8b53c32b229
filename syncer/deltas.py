"""Deltas as the syncer keeps them until they are merged: flat float32, or still encoded as they travelled.

An encoded delta is a fraction of the fragment, and is decoded tensor by tensor while it is merged, so that the memory
of a round is its members' encoded deltas and not their float32. Knows streams, encodings and arrays, and nothing of
islands, rounds or messages.

Invariants: a chunk is written once, whole, to its own place; `read` gives the same floats whatever the range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core import codec
from swift_diloco.core.codec import CHUNK_ELEMENTS, Encoding
from swift_diloco.core.frames import Buffer
from swift_diloco.core.merge import Contribution, MergeOutcome, MergePlan, TensorSlot, merge_and_step_fragment
from swift_diloco.core.outer import OuterState, run_all
from swift_diloco.core.pieces import FragmentStream
from syncer.buffers import ValueBuffers

SCRATCH_BYTES = 64 * 1024 * 1024
"""Decoded floats of all contributions together that a merge has at a time; one tensor of each at least."""

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
    ranges: Mapping[int, tuple[int, int]]
    """Stream range of each tensor, by its number in the layout."""


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
        self._chunk_bytes = codec.encoded_bytes(CHUNK_ELEMENTS, encoding)
        self.elements = sum(stream.elements for stream in streams.values())
        sizes = {rank: stream_bytes(stream.elements, encoding) for rank, stream in streams.items()}
        self.nbytes = sum(sizes.values())
        storage = buffers.take(max(1, -(-self.nbytes // F32_BYTES))).view(np.uint8)
        self._parts: dict[int, _Part] = {}
        begin = 0
        for rank, stream in streams.items():
            self._parts[rank] = _Part(stream, storage[begin : begin + sizes[rank]], stream.tensor_ranges())
            begin += sizes[rank]

    def put(self, rank: int, index: int, payload: Buffer) -> None:
        """Keep a chunk, whose size was checked."""
        begin = index * self._chunk_bytes
        self._parts[rank].payload[begin : begin + len(payload)] = np.frombuffer(payload, np.uint8)

    def read(self, tensors: tuple[int, int], span: tuple[int, int], out: NDArray[np.float32]) -> None:
        wanted = self._tensors[slice(*tensors)]
        for part in self._parts.values():
            for begin, end in _merged(part.ranges[tensor] for tensor in wanted if tensor in part.ranges):
                self._decode(part, begin, end, out, span[0])

    def flat(self, buffers: ValueBuffers) -> NDArray[np.float32]:
        """All of it as float32, in layout order."""
        values = buffers.take(self.elements)
        self.read((0, len(self._tensors)), (0, self.elements), values)
        return values

    def _decode(self, part: _Part, begin: int, end: int, out: NDArray[np.float32], base: int) -> None:
        """Write the stream range [begin, end) of a rank to its places in `out`, which begins at element `base`."""
        stream = part.stream
        room = np.empty(min(CHUNK_ELEMENTS, stream.elements), np.float32)
        for index in range(begin // CHUNK_ELEMENTS, codec.chunk_count(end)):
            size = codec.chunk_elements(stream.elements, index)
            at = index * self._chunk_bytes
            payload = part.payload[at : at + codec.encoded_bytes(size, self.encoding)]
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
    chunks = range(codec.chunk_count(elements))
    return sum(codec.encoded_bytes(codec.chunk_elements(elements, k), encoding) for k in chunks)


@dataclass(frozen=True, eq=False)
class Push:
    """One contribution to a merge. `order` keeps the pushes of one island apart, the older one first."""

    island: int
    weight: float
    delta: Delta
    order: int = 0


def merge_pushes(
    plan: MergePlan, pushes: Sequence[Push], state: OuterState, out: OuterState, pool: ThreadPoolExecutor | None
) -> MergeOutcome:
    """Merge a fragment and take the outer step, as `merge_and_step_fragment` does and with the same bits, decoding
    what is encoded some tensors at a time."""
    pushes = [push for push in pushes if push.weight > 0]
    if all(isinstance(push.delta, FlatDelta) for push in pushes):
        given = [_contribution(push, push.delta.values) for push in pushes if isinstance(push.delta, FlatDelta)]
        return merge_and_step_fragment(plan, given, state, out, pool)
    outcomes = []
    scratch = np.empty((0, 0), np.float32)
    for tensors, span in _groups(plan.slots, SCRATCH_BYTES // F32_BYTES // len(pushes)):
        low, high = span
        if scratch.shape[1] < high - low:
            scratch = np.empty((len(pushes), high - low), np.float32)
        rows = [_row(push, span, room) for push, room in zip(pushes, scratch, strict=True)]
        jobs = [(push, row) for push, row in zip(pushes, rows, strict=True) if not isinstance(push.delta, FlatDelta)]
        _decode_all(jobs, tensors, span, pool)
        slots = tuple(TensorSlot(s.offset - low, s.size, s.rule) for s in plan.slots[slice(*tensors)])
        given = [_contribution(push, row) for push, row in zip(pushes, rows, strict=True)]
        group = MergePlan(slots, plan.outer, plan.encoding)
        outcomes.append(merge_and_step_fragment(group, given, _part(state, span), _part(out, span), pool))
    offenders = sorted({island for outcome in outcomes for island in outcome.offenders})
    return MergeOutcome(all(o.finite for o in outcomes), tuple(offenders), outcomes[0].total_weight)


def _row(push: Push, span: tuple[int, int], room: NDArray[np.float32]) -> NDArray[np.float32]:
    if isinstance(push.delta, FlatDelta):
        return push.delta.values[slice(*span)]
    return room[: span[1] - span[0]]


def _decode_all(
    jobs: Sequence[tuple[Push, NDArray[np.float32]]],
    tensors: tuple[int, int],
    span: tuple[int, int],
    pool: ThreadPoolExecutor | None,
) -> None:
    def decode(push: Push, row: NDArray[np.float32]) -> None:
        push.delta.read(tensors, span, row)

    run_all(decode, jobs, pool)


def _contribution(push: Push, delta: NDArray[np.float32]) -> Contribution:
    return Contribution(push.island, push.weight, delta, base_version=push.order)


def _part(state: OuterState, span: tuple[int, int]) -> OuterState:
    part = slice(*span)
    return OuterState(state.values[part], None if state.momentum is None else state.momentum[part])


def _groups(slots: Sequence[TensorSlot], most: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Runs of tensors of up to `most` elements together, at least one tensor each: (tensors, elements) ranges."""
    cuts, begin = [0], 0
    for number, slot in enumerate(slots):
        if number > cuts[-1] and slot.offset + slot.size - begin > most:
            cuts.append(number)
            begin = slot.offset
    ends = [slot.offset + slot.size for slot in slots]
    for first, last in pairwise([*cuts, len(slots)]):
        yield (first, last), (slots[first].offset, ends[last - 1])


def _merged(ranges: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Adjoining ranges as one."""
    result: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if result and result[-1][1] == begin:
            result[-1] = (result[-1][0], end)
        else:
            result.append((begin, end))
    return result
