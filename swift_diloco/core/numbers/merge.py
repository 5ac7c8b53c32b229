"""The merge of what several islands learned into one outer gradient, alone or fused with the outer step of a fragment.

Per tensor, over the contributions with a weight above 0, in the order of island ids (w their weights, W = Σw):

    avg   g = Σ (w/W)·g_i
    rda   radius = Σ (w/W)·|g_i|,   u = Σ (w/W)·g_i/|g_i| (zero vectors skipped),   g = radius·u/|u|

where g_i = −delta_i. Radial-directional averaging keeps the length that averaging loses when islands disagree. Where
|u| is below a threshold the direction is rounding noise at full radius, so avg is used there. Both rules are one
weighted sum with different coefficients, taken in float64 and rounded once to float32; the sign turns there, and
nowhere else.

This module knows arrays and weights, and nothing of rounds, encodings' bytes or files.

Invariants:
* the bits of a result depend neither on the order in which contributions arrived nor on the number of threads;
* one contribution comes through with its bits (identity);
* a delta that is not finite makes the outcome void and its island is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.numbers import kernels
from swift_diloco.core.numbers.codec import is_finite
from swift_diloco.core.numbers.outer_optimizer import (
    RANGE_ELEMENTS,
    OuterSettings,
    OuterState,
    check_array,
    check_states,
    ranges_of,
    run_all,
)

_RDA_THRESHOLDS = {Encoding.F32: 1e-6, Encoding.BF16: 1e-2, Encoding.INT8: 0.1, Encoding.Q4: 0.1}


class MergeRule(Enum):
    """How the deltas of one tensor become one; the value of a member is its name in the layout."""

    AVG = "avg"
    """Weighted mean: for embeddings and output heads, whose rows see different tokens on each island."""
    RDA = "rda"
    """Radial-directional averaging: mean length times mean direction."""


@dataclass(frozen=True)
class TensorSlot:
    """Where one tensor lies in the flat values of its fragment (elements), and how it is merged."""

    offset: int
    size: int
    rule: MergeRule


def slots_of(tensors: Iterable[tuple[int, MergeRule]]) -> tuple[TensorSlot, ...]:
    """The slots of tensors given as (elements, rule), one after the other in layout order."""
    slots: list[TensorSlot] = []
    end = 0
    for size, rule in tensors:
        slots.append(TensorSlot(end, size, rule))
        end += size
    return tuple(slots)


@dataclass(frozen=True, eq=False)
class WeightedDelta:
    """One push: `delta` = local minus anchor of the whole fragment, float32, flat, in layout order.

    A carried and a fresh push of one island are two contributions; `base_version` puts the older one first. With
    weight 0 (an empty answer) the delta is never read and may be empty.
    """

    island_id: int
    weight: float
    delta: NDArray[np.float32]
    base_version: int = 0


@dataclass(frozen=True)
class MergePlan:
    """What each outer step of one fragment has in common: its tensors in order, the optimizer, how deltas travelled."""

    slots: tuple[TensorSlot, ...]
    outer: OuterSettings
    encoding: Encoding = Encoding.F32
    heloco: bool = False
    """Deltas are corrected against the momentum before they are merged; see `heloco`."""


@dataclass(frozen=True)
class MergeOutcome:
    """Whether the result may be used, and if not, why."""

    finite: bool
    """Every number written is finite."""
    offenders: tuple[int, ...]
    """Ids of the islands whose delta has a number that is not finite, ascending."""
    total_weight: float
    """Σw; 0 when nobody has trained, and then nothing was written."""

    @property
    def void(self) -> bool:
        """Nothing that was written may be used: the outer step changes no version."""
        return not self.finite or bool(self.offenders) or self.total_weight == 0


def rda_threshold(encoding: Encoding) -> float:
    """|u| below which the direction is noise of the encoding, and rda falls back to avg."""
    return _RDA_THRESHOLDS[encoding]


def merge_tensor(
    rule: MergeRule,
    contributions: Sequence[WeightedDelta],
    out: NDArray[np.float32],
    encoding: Encoding = Encoding.F32,
    pool: ThreadPoolExecutor | None = None,
) -> MergeOutcome:
    """Write the outer gradient of one tensor to `out`; here the deltas are those of this tensor alone.

    Raises `ValueError` when a size, type or weight does not fit. Do not call it from a job of the same `pool`.
    """
    check_array("out", out, out.size)
    table = _Table.of(contributions, out.size)
    if table.total_weight == 0:
        return MergeOutcome(False, (), 0.0)
    slots = (TensorSlot(0, out.size, rule),)
    (coefficients,) = _coefficients(table, slots, rda_threshold(encoding), pool)

    def merge(low: int, high: int) -> bool:
        return kernels.gradient_range(table.addresses, coefficients, (low, high), out[low:high])

    return table.outcome(all(run_all(merge, ranges_of(0, out.size), pool)))


def merge_and_step_fragment(
    plan: MergePlan,
    contributions: Sequence[WeightedDelta],
    state: OuterState,
    out: OuterState,
    pool: ThreadPoolExecutor | None = None,
) -> MergeOutcome:
    """Merge all tensors of a fragment and take the outer step; the new state is in `out`, to be used unless `void`.

    The same bits as `merge_tensor` and `outer_step` tensor by tensor, with each delta read three times (once with one
    island, or under avg), the state read once and written once. Raises `ValueError` when slots do not tile the
    fragment, or a size, type or weight does not fit. `out` must not be `state`, which a void outcome leaves as it
    was. Do not call it from a job of the same `pool`.
    """
    check_states(state, out, plan.outer)
    _check_tiling(plan.slots, state.size)
    table = _Table.of(contributions, state.size)
    if table.total_weight == 0:
        return MergeOutcome(False, (), 0.0)
    per_slot = _coefficients(table, plan.slots, rda_threshold(plan.encoding), pool)
    jobs = [
        (coefficients, low, high)
        for slot, coefficients in zip(plan.slots, per_slot, strict=True)
        for low, high in ranges_of(slot.offset, slot.offset + slot.size)
    ]
    step = _Step(plan.outer, state, out)

    def step_range(coefficients: NDArray[np.float64], low: int, high: int) -> bool:
        return step.range(table.addresses, coefficients, low, high)

    return table.outcome(all(run_all(step_range, jobs, pool)))


def merge_and_step_tensor(
    plan: MergePlan,
    deltas: WindowedDeltas,
    state: OuterState,
    out: OuterState,
    pool: ThreadPoolExecutor | None = None,
) -> bool:
    """The same for one tensor whose deltas are too large to be in memory at once, with the same bits: they are read
    window by window, three times under rda. Whether every number written is finite."""
    check_states(state, out, plan.outer)
    _check_tiling(plan.slots, state.size)
    (slot,) = plan.slots
    assert deltas.window % RANGE_ELEMENTS == 0, "a window ends inside the range of a partial sum"
    total = math.fsum(deltas.weights)
    shares = kernels.readonly(np.array([weight / total for weight in deltas.weights], np.float64))
    windows = [(low, min(low + deltas.window, slot.size)) for low in range(0, slot.size, deltas.window)]
    coefficients = shares
    if slot.rule is MergeRule.RDA and len(shares) > 1:
        coefficients = _windowed_coefficients(deltas, windows, shares, rda_threshold(plan.encoding), pool)
    step, finite = _Step(plan.outer, state, out), True
    for window in windows:
        addresses = deltas.load(*window)

        def step_range(low: int, high: int, addresses: NDArray[np.int64] = addresses) -> bool:
            return step.range(addresses, coefficients, low, high)

        finite = all(run_all(step_range, ranges_of(*window), pool)) and finite
    return finite


class WindowedDeltas(Protocol):
    """The deltas of one tensor that weigh, in the fixed order, some elements of each at a time."""

    @property
    def weights(self) -> Sequence[float]:
        """All above 0."""
        ...

    @property
    def window(self) -> int:
        """Elements of a window: a multiple of RANGE_ELEMENTS."""
        ...

    def load(self, low: int, high: int) -> NDArray[np.int64]:
        """Addresses such that element j of each delta, low ≤ j < high, lies 4·j bytes behind its address; they hold
        until the next load."""
        ...


@dataclass(frozen=True, eq=False)
class _Step:
    """Takes the outer step of a range of elements from merged deltas."""

    outer: OuterSettings
    state: OuterState
    out: OuterState

    def range(self, addresses: NDArray[np.int64], coefficients: NDArray[np.float64], low: int, high: int) -> bool:
        """Whether every number written is finite."""
        state, out, part = self.state, self.out, slice(low, high)
        head = (addresses, coefficients, (low, high), self.outer.rates)
        values = kernels.readonly(state.values[part])
        if self.outer.momentum == 0:
            return kernels.merge_plain_range(*head, (values, out.values[part]))
        assert state.momentum is not None and out.momentum is not None
        momentum = kernels.readonly(state.momentum[part])
        return kernels.merge_momentum_range(*head, (values, momentum, out.values[part], out.momentum[part]))


@dataclass(frozen=True, eq=False)
class _Table:
    """The contributions that weigh, in the fixed order, with the addresses of their deltas (which it keeps alive)."""

    contributions: tuple[WeightedDelta, ...]
    addresses: NDArray[np.int64]
    shares: NDArray[np.float64]
    """w/W of each."""
    total_weight: float

    @classmethod
    def of(cls, contributions: Sequence[WeightedDelta], size: int) -> _Table:
        for c in contributions:
            if not (math.isfinite(c.weight) and c.weight >= 0):
                raise ValueError(f"island {c.island_id}: expected a finite weight of 0 or more; found {c.weight}")
        kept = tuple(sorted((c for c in contributions if c.weight > 0), key=lambda c: (c.island_id, c.base_version)))
        keys = [(c.island_id, c.base_version) for c in kept]
        if len(set(keys)) < len(keys):
            raise ValueError(f"expected one contribution per island and base version; found {keys}")
        for c in kept:
            check_array(f"delta of island {c.island_id}", c.delta, size)
        addresses = np.array([c.delta.ctypes.data for c in kept], np.int64)
        total = math.fsum(c.weight for c in kept)
        shares = np.array([c.weight / total for c in kept], np.float64)
        return cls(kept, kernels.readonly(addresses), kernels.readonly(shares), total)

    def outcome(self, finite: bool) -> MergeOutcome:
        """Any number that is not finite in a delta shows in the sum, so the deltas are searched only when the
        sum is not."""
        if finite:
            return MergeOutcome(True, (), self.total_weight)
        offenders = sorted({c.island_id for c in self.contributions if not is_finite(c.delta)})
        return MergeOutcome(False, tuple(offenders), self.total_weight)


def _check_tiling(slots: Sequence[TensorSlot], size: int) -> None:
    end = 0
    for number, slot in enumerate(slots):
        if slot.offset != end or slot.size < 0:
            raise ValueError(f"tensor {number}: expected offset {end}; found offset {slot.offset}, size {slot.size}")
        end += slot.size
    if end != size:
        raise ValueError(f"the tensors have {end} elements together; the fragment has {size}")


def _coefficients(
    table: _Table, slots: Sequence[TensorSlot], threshold: float, pool: ThreadPoolExecutor | None
) -> list[NDArray[np.float64]]:
    """Per tensor the coefficient of each delta, such that the merged delta is Σ coefficient·delta.

    Two passes over the deltas of all rda tensors at once: their lengths, then the length of the sum of their
    directions. (The second could be had from the inner products of the first, but where islands disagree that loses
    half of its digits; and with four islands it took as long as both passes do.)
    """
    islands = len(table.contributions)
    rda = [number for number, slot in enumerate(slots) if slot.rule is MergeRule.RDA and slot.size > 0 and islands > 1]
    ranges = {number: ranges_of(slots[number].offset, slots[number].offset + slots[number].size) for number in rda}

    def squared_lengths(low: int, high: int) -> list[float]:
        squares = np.empty(islands)
        kernels.squared_norms(table.addresses, low, high, squares)
        return squares.tolist()

    def squared_direction(number: int, low: int, high: int) -> float:
        return kernels.squared_norm_of_sum(table.addresses, directions[number], low, high)

    jobs = [pair for number in rda for pair in ranges[number]]
    squares = iter(run_all(squared_lengths, jobs, pool))
    lengths = {
        number: np.array([math.sqrt(math.fsum(c)) for c in zip(*(next(squares) for _ in ranges[number]), strict=True)])
        for number in rda
    }
    directions = {number: _per_length(table.shares, lengths[number]) for number in rda}
    parts = iter(run_all(squared_direction, [(n, low, high) for n in rda for low, high in ranges[n]], pool))
    result = [table.shares] * len(slots)
    for number in rda:
        u = math.sqrt(math.fsum(next(parts) for _ in ranges[number]))
        result[number] = _radial(table.shares, lengths[number], directions[number], u, threshold)
    return result


def _windowed_coefficients(
    deltas: WindowedDeltas,
    windows: Sequence[tuple[int, int]],
    shares: NDArray[np.float64],
    threshold: float,
    pool: ThreadPoolExecutor | None,
) -> NDArray[np.float64]:
    """`_coefficients` of one rda tensor, window by window."""
    squares: list[list[float]] = []
    for window in windows:
        addresses = deltas.load(*window)

        def squared_lengths(low: int, high: int, addresses: NDArray[np.int64] = addresses) -> list[float]:
            result = np.empty(len(shares))
            kernels.squared_norms(addresses, low, high, result)
            return result.tolist()

        squares += run_all(squared_lengths, ranges_of(*window), pool)
    lengths = np.array([math.sqrt(math.fsum(column)) for column in zip(*squares, strict=True)])
    directions = _per_length(shares, lengths)
    parts: list[float] = []
    for window in windows:
        addresses = deltas.load(*window)

        def squared_direction(low: int, high: int, addresses: NDArray[np.int64] = addresses) -> float:
            return kernels.squared_norm_of_sum(addresses, directions, low, high)

        parts += run_all(squared_direction, ranges_of(*window), pool)
    return _radial(shares, lengths, directions, math.sqrt(math.fsum(parts)), threshold)


def _radial(
    shares: NDArray[np.float64],
    lengths: NDArray[np.float64],
    directions: NDArray[np.float64],
    u: float,
    threshold: float,
) -> NDArray[np.float64]:
    """The coefficients of radial-directional averaging, or those of avg where |u| is below the threshold."""
    # `not >=`: a length that is not a number takes the plain path too, where the sum shows it.
    if not u >= threshold:
        return shares
    radius = math.fsum(shares * lengths)
    return kernels.readonly(directions * (radius / u))


def _per_length(shares: NDArray[np.float64], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """(w/W)/|g|, and 0 for zero vectors, which have no direction."""
    return kernels.readonly(np.divide(shares, lengths, out=np.zeros_like(shares), where=lengths > 0))
