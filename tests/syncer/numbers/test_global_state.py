"""Published buffers, their swap, and the outer step that makes the next ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.core.numbers.digest import fragment_digest
from swift_diloco.core.numbers.outer_optimizer import OuterSettings
from syncer.numbers.deltas import FlatDelta
from syncer.numbers.global_state import SPARE_BUFFERS, GlobalState
from syncer.numbers.outer_step import Weighted

LAYOUT = make_layout([TensorSpec("a", (2, 3), "rda"), TensorSpec("b", (4,), "avg")])
PLAN = FragmentPlan(((0,), (1,)))


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def state_of(outer: OuterSettings, *values: NDArray[np.float32], average_only: bool = False) -> GlobalState:
    state = GlobalState(outer, average_only)
    state.adopt_layout(LAYOUT, PLAN)
    state.adopt_init(state.init_job(values)())
    return state


def step(state: GlobalState, t: int, fragment: int, *deltas: NDArray[np.float32]) -> None:
    """An outer step with equal weights."""
    pushes = [Weighted(i, 1.0, FlatDelta(delta)) for i, delta in enumerate(deltas)]
    result = state.merge_job(fragment, pushes)()
    state.keep(t, result)
    state.commit(t, ValueName(fragment, t, result.digest))


def values_of(state: GlobalState, fragment: int) -> list[float]:
    present = state.present(fragment)
    assert present is not None
    return [float(v) for v in present.values]


def test_there_is_no_value_before_init() -> None:
    state = GlobalState(OuterSettings(1.0), False)
    assert state.present(0) is None and state.names == ()
    state.adopt_layout(LAYOUT, PLAN)
    assert state.present(0) is None and state.present(2) is None and state.names == ()
    assert [state.elements(0), state.elements(1)] == [6, 4]


def test_initial_values_are_version_0_named_by_their_digests_and_read_only() -> None:
    initial = [f32(1, 2, 3, 4, 5, 6), f32(7, 8, 9, 10)]
    state = state_of(OuterSettings(1.0), *initial)
    assert state.names == tuple(ValueName(f, 0, fragment_digest(v)) for f, v in enumerate(initial))
    present = state.present(0)
    assert present is not None and not present.values.flags.writeable
    assert np.shares_memory(present.values, initial[0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_memory_made_ready_for_first_merges_changes_no_bit(momentum: float) -> None:
    results = []
    for prepared in (False, True):
        state = state_of(OuterSettings(0.5, momentum, momentum > 0), f32(1, 2, 3, 4, 5, 6), f32(1, 1, 1, 1))
        for fragment in (0, 1) if prepared else ():
            state.prepare_job(fragment)()
        for t, fragment in [(1, 0), (2, 1), (3, 0)]:
            step(state, t, fragment, np.full(state.elements(fragment), 0.3, np.float32))
        results.append((values_of(state, 0), values_of(state, 1), state.names))
    assert results[0] == results[1]


def test_memory_is_made_ready_once_and_only_momentum_keeps_it() -> None:
    state = state_of(OuterSettings(0.5, 0.9, True), f32(1, 2, 3, 4, 5, 6), f32(1, 1, 1, 1))
    state.prepare_job(0)()
    assert state.buffers.idle_bytes == SPARE_BUFFERS * 6 * 4
    step(state, 1, 0, f32(1, 1, 1, 1, 1, 1))
    assert state.buffers.idle_bytes == (SPARE_BUFFERS - 1) * 6 * 4, "the new value took one, the momentum none"
    plain = state_of(OuterSettings(0.5), f32(1, 2, 3, 4, 5, 6), f32(1, 1, 1, 1))
    plain.prepare_job(1)()
    assert plain.buffers.idle_bytes == 0


def test_outer_steps_follow_torchs_nesterov() -> None:
    """lr 0.5, momentum 0.9, three steps by hand: g = -delta; b = 0.9 b + g; T = T - 0.5 (g + 0.9 b)."""
    state = state_of(OuterSettings(0.5, 0.9, True), f32(0, 0, 0, 0, 0, 0), f32(1, 1, 1, 1))
    value, b = 1.0, 0.0
    for t, delta in [(1, 1.0), (2, 0.5), (3, -2.0)]:
        step(state, t, 1, f32(*[delta] * 4))
        b = 0.9 * b - delta
        value -= 0.5 * (-delta + 0.9 * b)
        np.testing.assert_allclose(values_of(state, 1), value, rtol=1e-6)
    assert values_of(state, 0) == [0.0] * 6
    assert [name.version for name in state.names] == [0, 3]


def test_stale_push_carries_only_its_own_progress() -> None:
    """10, then a push of -2 and one of -1, both measured from version 0: 8, then 7."""
    state = state_of(OuterSettings(1.0), f32(0, 0, 0, 0, 0, 0), f32(10, 10, 10, 10))
    step(state, 1, 1, f32(-2, -2, -2, -2))
    assert values_of(state, 1) == [8.0] * 4
    step(state, 2, 1, f32(-1, -1, -1, -1))
    assert values_of(state, 1) == [7.0] * 4


def test_rule_of_the_tensor_is_used_unless_everything_is_averaged() -> None:
    """Two orthogonal deltas of length 3 and 4 in the rda tensor: the mean length 3.5 stays, or the mean
    of the vectors."""
    deltas = f32(3, 0, 0, 0, 0, 0), f32(0, 4, 0, 0, 0, 0)
    zeros = f32(0, 0, 0, 0, 0, 0), f32(0, 0, 0, 0)
    state = state_of(OuterSettings(1.0), *zeros)
    step(state, 1, 0, *deltas)
    np.testing.assert_allclose(values_of(state, 0)[:2], [3.5 / np.sqrt(2)] * 2, rtol=1e-6)
    averaged = state_of(OuterSettings(1.0), *(z.copy() for z in zeros), average_only=True)
    step(averaged, 1, 0, *deltas)
    assert values_of(averaged, 0)[:2] == [1.5, 2.0]


def test_commit_leaves_the_old_buffer_as_it_was() -> None:
    state = state_of(OuterSettings(1.0), f32(0, 0, 0, 0, 0, 0), f32(1, 2, 3, 4))
    old = state.present(1)
    assert old is not None
    result = state.merge_job(1, [Weighted(0, 1.0, FlatDelta(f32(1, 1, 1, 1)))])()
    assert values_of(state, 1) == [1, 2, 3, 4]
    state.keep(1, result)
    assert state.commit(1, ValueName(1, 1, result.digest)) is old
    assert values_of(state, 1) == [2, 3, 4, 5]
    assert [float(v) for v in old.values] == [1, 2, 3, 4]


def test_void_result_leaves_values_and_momentum() -> None:
    state = state_of(OuterSettings(1.0, 0.5), f32(0, 0, 0, 0, 0, 0), f32(0, 0, 0, 0))
    step(state, 1, 1, f32(1, 1, 1, 1))
    result = state.merge_job(1, [Weighted(3, 1.0, FlatDelta(f32(0, np.nan, 0, 0)))])()
    assert result.outcome.void and result.outcome.offenders == (3,) and result.digest == ""
    state.keep(2, result)
    state.discard(2)
    state.discard(2)
    step(state, 3, 1, f32(1, 1, 1, 1))
    assert values_of(state, 1) == [2.5] * 4  # b = 0.5·1 + 1


def test_result_with_another_name_is_our_bug() -> None:
    state = state_of(OuterSettings(1.0), f32(0, 0, 0, 0, 0, 0), f32(0, 0, 0, 0))
    state.keep(1, state.merge_job(1, [Weighted(0, 1.0, FlatDelta(f32(1, 1, 1, 1)))])())
    with pytest.raises(AssertionError, match="does not follow"):
        state.commit(1, ValueName(1, 1, "another digest"))


def test_bits_do_not_depend_on_threads() -> None:
    layout = make_layout([TensorSpec("a", (3, 1 << 20), "rda")])
    generator = np.random.default_rng(0)
    initial, *deltas = (generator.standard_normal(3 << 20).astype(np.float32) for _ in range(3))
    digests = []
    with ThreadPoolExecutor(2) as pool:
        for threads in (None, pool):
            state = GlobalState(OuterSettings(0.7, 0.9, True), False, threads)
            state.adopt_layout(layout, FragmentPlan(((0,),)))
            state.adopt_init(state.init_job([initial.copy()])())
            step(state, 1, 0, *deltas)
            digests.append(state.names)
    assert digests[0] == digests[1]


def test_warm_up_compiles_and_changes_nothing() -> None:
    state = state_of(OuterSettings(1.0, 0.9, True), f32(0, 0, 0, 0, 0, 0), f32(1, 2, 3, 4))
    state.warm_up()
    assert values_of(state, 1) == [1, 2, 3, 4]
