"""One outer step of a fragment from deltas as they are kept: the bits of decoding all first, without the memory.

Small tensors are decoded some at a time; one that is too large for that is read window by window, three times under
radial averaging. Knows deltas, tensors and weights, and nothing of rounds.

Invariant: decoded floats take at most about `SCRATCH_BYTES`, whatever the number of islands (a window and a row of each
at least).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.numbers.codec import is_finite
from swift_diloco.core.numbers.heloco import correct
from swift_diloco.core.numbers.merge import (
    MergeOutcome,
    MergePlan,
    TensorSlot,
    WeightedDelta,
    merge_and_step_fragment,
    merge_and_step_tensor,
)
from swift_diloco.core.numbers.outer_optimizer import RANGE_ELEMENTS, OuterState, run_all
from syncer.numbers.deltas import F32_BYTES, Delta, EncodedDelta, FlatDelta

SCRATCH_BYTES = 64 * 1024 * 1024
"""Decoded floats of all contributions together that a merge has at a time."""


@dataclass(frozen=True, eq=False)
class Weighted:
    """One contribution to a merge. `order` keeps the pushes of one island apart, the older one first."""

    island: int
    weight: float
    delta: Delta
    order: int = 0


def merge_pushes(
    plan: MergePlan,
    pushes: Sequence[Weighted],
    state: OuterState,
    out: OuterState,
    pool: ThreadPoolExecutor | None,
) -> MergeOutcome:
    """Merge a fragment and take the outer step, as `merge_and_step_fragment` does and with the same bits."""
    pushes = sorted((push for push in pushes if push.weight > 0), key=lambda push: (push.island, push.order))
    if plan.heloco and state.momentum is not None and pushes:
        return _merge_corrected(plan, pushes, state, out, pool)
    if all(isinstance(push.delta, FlatDelta) for push in pushes):
        given = [_weighted_delta(push, push.delta.values) for push in pushes if isinstance(push.delta, FlatDelta)]
        return merge_and_step_fragment(plan, given, state, out, pool)
    budget = SCRATCH_BYTES // F32_BYTES // len(pushes)
    scratch = np.empty((len(pushes), 0), np.float32)
    outcomes = []
    for tensors, span in _groups(plan.slots, budget):
        low, high = span
        slots = tuple(TensorSlot(s.offset - low, s.size, s.rule) for s in plan.slots[slice(*tensors)])
        group = MergePlan(slots, plan.outer, plan.encoding)
        parts = _part(state, span), _part(out, span)
        if high - low > budget:
            outcomes.append(_merge_large(group, _Windows(pushes, tensors[0], span, budget, pool), *parts, pool))
            continue
        if scratch.shape[1] < high - low:
            scratch = np.empty((len(pushes), high - low), np.float32)
        rows = [_row(push, span, room) for push, room in zip(pushes, scratch, strict=True)]
        jobs = [(push, row) for push, row in zip(pushes, rows, strict=True) if not isinstance(push.delta, FlatDelta)]
        _decode_all(jobs, tensors, span, pool)
        given = [_weighted_delta(push, row) for push, row in zip(pushes, rows, strict=True)]
        outcomes.append(merge_and_step_fragment(group, given, *parts, pool))
    offenders = sorted({island for outcome in outcomes for island in outcome.offenders})
    return MergeOutcome(all(o.finite for o in outcomes), tuple(offenders), outcomes[0].total_weight)


def _merge_corrected(
    plan: MergePlan,
    pushes: Sequence[Weighted],
    state: OuterState,
    out: OuterState,
    pool: ThreadPoolExecutor | None,
) -> MergeOutcome:
    """With a correction every delta becomes another one first: all are decoded (copied), whatever their encoding."""
    assert state.momentum is not None
    size = state.values.size
    rows = [np.empty(size, np.float32) for _ in pushes]
    for push, row in zip(pushes, rows, strict=True):
        push.delta.read((0, len(plan.slots)), (0, size), row)
    correct(rows, state.momentum, plan.slots, pool)
    given = [_weighted_delta(push, row) for push, row in zip(pushes, rows, strict=True)]
    return merge_and_step_fragment(plan, given, state, out, pool)


def _merge_large(
    plan: MergePlan, deltas: _Windows, state: OuterState, out: OuterState, pool: ThreadPoolExecutor | None
) -> MergeOutcome:
    """One tensor that is too large to be decoded at once."""
    finite = merge_and_step_tensor(plan, deltas, state, out, pool)
    return MergeOutcome(finite, () if finite else deltas.offenders(state.size), sum(deltas.weights))


class _Windows:
    """`WindowedDeltas` of one tensor of several pushes. `span` is where the tensor lies in the fragment."""

    def __init__(
        self,
        pushes: Sequence[Weighted],
        tensor: int,
        span: tuple[int, int],
        budget: int,
        pool: ThreadPoolExecutor | None,
    ) -> None:
        self.weights = [push.weight for push in pushes]
        self.window = max(1, budget // RANGE_ELEMENTS) * RANGE_ELEMENTS
        self._pushes = pushes
        self._tensor = tensor
        self._span = span
        self._pool = pool
        rows = next(push.delta.row_elements(tensor) for push in pushes if isinstance(push.delta, EncodedDelta))
        self._row = rows
        self._room: list[NDArray[np.float32]] = [np.empty(0, np.float32) for _ in pushes]

    def load(self, low: int, high: int) -> NDArray[np.int64]:
        first, last = low // self._row, -(-high // self._row)
        size = (last - first) * self._row

        def address(number: int) -> int:
            """Of element 0 of the tensor, had it been decoded whole."""
            delta = self._pushes[number].delta
            if isinstance(delta, FlatDelta):
                return int(delta.values[self._span[0] :].ctypes.data)
            if self._room[number].size < size:
                self._room[number] = np.empty(size, np.float32)
            room = self._room[number][:size]
            assert isinstance(delta, EncodedDelta)
            delta.read_rows(self._tensor, (first, last), room)
            return int(room.ctypes.data) - F32_BYTES * first * self._row

        numbers = [(number,) for number in range(len(self._pushes))]
        addresses = np.array(run_all(address, numbers, self._pool), np.int64)
        addresses.flags.writeable = False
        return addresses

    def offenders(self, size: int) -> tuple[int, ...]:
        """Islands with a number that is not finite."""
        found: set[int] = set()
        for low in range(0, size, self.window):
            self.load(low, high := min(low + self.window, size))
            for push, room in zip(self._pushes, self._room, strict=True):
                part = room[low % self._row :][: high - low]
                if isinstance(push.delta, FlatDelta):
                    part = push.delta.values[self._span[0] + low : self._span[0] + high]
                if not is_finite(part):
                    found.add(push.island)
        return tuple(sorted(found))


def _row(push: Weighted, span: tuple[int, int], room: NDArray[np.float32]) -> NDArray[np.float32]:
    if isinstance(push.delta, FlatDelta):
        return push.delta.values[slice(*span)]
    return room[: span[1] - span[0]]


def _decode_all(
    jobs: Sequence[tuple[Weighted, NDArray[np.float32]]],
    tensors: tuple[int, int],
    span: tuple[int, int],
    pool: ThreadPoolExecutor | None,
) -> None:
    def decode(push: Weighted, row: NDArray[np.float32]) -> None:
        push.delta.read(tensors, span, row)

    run_all(decode, jobs, pool)


def _weighted_delta(push: Weighted, delta: NDArray[np.float32]) -> WeightedDelta:
    return WeightedDelta(push.island, push.weight, delta, base_version=push.order)


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
