"""The global values and their momentum: immutable published buffers, and the arithmetic that makes the next ones.

A commit never writes into a published buffer: the new values are computed beside it and swapped in, so whoever still
sends or saves the old ones needs neither a copy nor a lock. The `…_job` methods give functions that run on another
thread; all else happens on the server's.

Invariants: a present value has the digest it is named by; versions of a fragment only grow; at most one result waits
per outer step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.layout.fragments import FragmentPlan, fragment_elements
from swift_diloco.core.layout.tensors import Layout
from swift_diloco.core.numbers import kernels
from swift_diloco.core.numbers.digest import fragment_digest
from swift_diloco.core.numbers.merge import MergeOutcome, MergePlan, MergeRule, slots_of
from swift_diloco.core.numbers.outer_optimizer import OuterSettings, OuterState
from syncer.numbers.buffers import ValueBuffers
from syncer.numbers.outer_step import Weighted, merge_pushes

SPARE_BUFFERS = 4
"""Buffers that are touched before the first merge: two rounds of an upload and a result each."""


@dataclass(frozen=True, eq=False)
class Value:
    """A published value. `values` is read-only and flat in layout order."""

    name: ValueName
    values: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class MergeResult:
    """What a merge job made, beside the present state."""

    state: OuterState
    outcome: MergeOutcome
    digest: str
    merge_s: float


class GlobalState:
    """Present value and momentum of each fragment, and the results that wait for their commit."""

    def __init__(
        self,
        outer: OuterSettings,
        average_only: bool,
        threads: ThreadPoolExecutor | None = None,
        encoding: Encoding = Encoding.F32,
        *,
        heloco: bool = False,
    ) -> None:
        """`average_only` sets the merge rules of the layout aside. `threads` share the arithmetic of one job.
        `encoding` is that of deltas: a coarse one makes directions of radial averaging less certain. `heloco` corrects
        deltas against the momentum before they are merged."""
        self._outer = outer
        self._encoding = encoding
        self._average_only = average_only
        self._heloco = heloco
        self._threads = threads
        self._plans: list[MergePlan] = []
        self._present: list[Value | None] = []
        self._momentum: list[NDArray[np.float32] | None] = []
        self._waiting: dict[int, MergeResult] = {}
        self._room: dict[int, NDArray[np.float32]] = {}
        """Where the first momentum of a fragment goes."""
        self._zeros = np.zeros(0, np.float32)
        self.buffers = ValueBuffers()
        """Where values and momentum come from; also for uploads, which become initial values."""
        self.layout: Layout | None = None
        self.plan: FragmentPlan | None = None

    def adopt_layout(self, layout: Layout, plan: FragmentPlan) -> None:
        """Fix the layout; there are no values yet."""
        assert self.layout is None or self.layout.fingerprint == layout.fingerprint, "the layout is fixed once"
        self.layout, self.plan = layout, plan
        self._plans = [self._merge_plan(layout, group) for group in plan.fragments]
        self._present = [None] * len(plan)
        self._momentum = [None] * len(plan)

    def elements(self, fragment: int) -> int:
        """Elements of a fragment."""
        assert self.layout is not None and self.plan is not None, "no layout yet"
        return fragment_elements(self.layout, self.plan, fragment)

    def present(self, fragment: int) -> Value | None:
        """The present value of a fragment; None before INIT or when there is no such fragment."""
        return self._present[fragment] if 0 <= fragment < len(self._present) else None

    @property
    def names(self) -> tuple[ValueName, ...]:
        """Names of the present values; empty before INIT."""
        return tuple(value.name for value in self._present if value is not None)

    def init_job(self, values: Sequence[NDArray[np.float32]]) -> Callable[[], tuple[Value, ...]]:
        """Name initial values, which become the published buffers as they are."""

        def job() -> tuple[Value, ...]:
            return tuple(
                Value(ValueName(fragment, 0, fragment_digest(each, self._threads)), _frozen(each))
                for fragment, each in enumerate(values)
            )

        return job

    def restore(self, values: Sequence[Value], momenta: Sequence[NDArray[np.float32] | None]) -> None:
        """Go on from values that were saved. Momentum that was not saved begins at zero."""
        self.adopt_init([Value(value.name, _frozen(value.values)) for value in values])
        self._momentum = list(momenta) if self._outer.momentum > 0 else [None] * len(values)

    def buffers_of(self, name: ValueName) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Parameters and momentum of a present value, or of a result that waits to become one."""
        value = self._present[name.fragment]
        if value is not None and value.name == name:
            return value.values, self._momentum[name.fragment]
        state = self._waiting[name.version].state
        return state.values, state.momentum

    def adopt_init(self, values: Sequence[Value]) -> None:
        """Make initial values the present ones."""
        assert len(values) == len(self._present), "one initial value per fragment"
        self._present = list(values)

    def merge_job(self, fragment: int, pushes: Sequence[Weighted]) -> Callable[[], MergeResult]:
        """Merge and take the outer step from the present value, into new buffers."""
        value, plan, buffers = self.present(fragment), self._plans[fragment], self.buffers
        momentum, room = self._momentum[fragment], self._room.pop(fragment, None)
        assert value is not None, f"fragment {fragment} has no value to merge into"

        def job() -> MergeResult:
            begin = time.perf_counter()
            size, needed = value.values.size, plan.outer.momentum > 0
            old = momentum if momentum is not None or not needed else self._no_momentum(size)
            target = room if room is not None or not needed else buffers.take(size)
            new = OuterState(buffers.take(size), target)
            outcome = merge_pushes(plan, pushes, OuterState(value.values, old), new, self._threads)
            digest = "" if outcome.void else fragment_digest(new.values, self._threads)
            return MergeResult(new, outcome, digest, time.perf_counter() - begin)

        return job

    def _no_momentum(self, elements: int) -> NDArray[np.float32]:
        """Zeros, the same for every fragment: each has its first outer step once."""
        zeros = self._zeros
        if zeros.size < elements:
            zeros = self._zeros = np.zeros(elements, np.float32)
        return zeros[:elements]

    def prepare_job(self, fragment: int) -> Callable[[], None]:
        """Touch the memory that the first merge of a fragment will write to. Without, first merges of 64 MiB took 0.3
        to 0.9 s, and later ones 0.04 s."""
        size, buffers, needed = self.elements(fragment), self.buffers, self._outer.momentum > 0
        spare = SPARE_BUFFERS if fragment == 0 else 0

        def job() -> None:
            touched = [buffers.take(size) for _ in range(spare + needed)]
            for each in touched:
                each.fill(0.0)
            if needed:
                self._room[fragment] = touched[0]

        return job

    def keep(self, t: int, result: MergeResult) -> None:
        """A merge job is done; its result waits for `commit` or `discard`."""
        self._waiting[t] = result

    def commit(self, t: int, name: ValueName) -> Value:
        """Swap in the result of outer step `t`; returns the value that it replaces."""
        result = self._waiting.pop(t)
        old = self._present[name.fragment]
        assert old is not None and not result.outcome.void, f"outer step {t} has nothing to commit"
        assert name.version > old.name.version and name.digest == result.digest, f"{name} does not follow {old.name}"
        self._present[name.fragment] = Value(name, _frozen(result.state.values))
        self._momentum[name.fragment] = result.state.momentum
        return old

    def discard(self, t: int) -> None:
        """Forget the result of outer step `t`, if there is one."""
        self._waiting.pop(t, None)

    def warm_up(self) -> None:
        """Compile the kernels of the merge, so that the first round does not wait for them."""
        kernels.warm_up()

    def _merge_plan(self, layout: Layout, group: Sequence[int]) -> MergePlan:
        specs = (layout.tensors[tensor] for tensor in group)
        average = MergeRule.AVG
        rules = ((spec.elements, average if self._average_only else MergeRule(spec.rule)) for spec in specs)
        return MergePlan(slots_of(rules), self._outer, self._encoding, self._heloco)


def _frozen(values: NDArray[np.float32]) -> NDArray[np.float32]:
    values.flags.writeable = False
    return values
