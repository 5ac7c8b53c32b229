"""The merge against a float64 reference, algebraic laws and tables computed by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.numbers import kernels
from swift_diloco.core.numbers import outer_optimizer as outer_module
from swift_diloco.core.numbers.digest import fragment_digest
from swift_diloco.core.numbers.merge import (
    MergeOutcome,
    MergePlan,
    MergeRule,
    TensorSlot,
    WeightedDelta,
    merge_and_step_fragment,
    merge_tensor,
    rda_threshold,
    slots_of,
)
from swift_diloco.core.numbers.outer_optimizer import OuterSettings, OuterState, outer_step

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
AVG, RDA = MergeRule.AVG, MergeRule.RDA
BOTH = pytest.mark.parametrize("rule", [AVG, RDA], ids=["avg", "rda"])
NESTEROV = OuterSettings(lr=0.7, momentum=0.9, nesterov=True)
PLAIN = OuterSettings(lr=1.0)


def vector(*numbers: float) -> F32:
    return np.array(numbers, np.float32)


def random_pushes(islands: int, n: int, seed: int = 0) -> list[WeightedDelta]:
    """Deltas that share a direction but differ, of unlike lengths and weights."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(n)
    return [
        WeightedDelta(
            i, float(rng.uniform(0.5, 20)), (10.0 ** (i % 4 - 2) * (common + rng.standard_normal(n))).astype("f4")
        )
        for i in range(islands)
    ]


def reference(rule: MergeRule, pushes: Sequence[WeightedDelta], threshold: float = 1e-6) -> F64:
    """The outer gradient as the rules define it, in float64 without a trick."""
    gradients = [-p.delta.astype(np.float64) for p in pushes]
    shares = [p.weight / sum(q.weight for q in pushes) for p in pushes]
    avg = np.sum([s * g for s, g in zip(shares, gradients, strict=True)], axis=0)
    if rule is AVG:
        return np.asarray(avg)
    norms = [np.linalg.norm(g) for g in gradients]
    radius = sum(s * n for s, n in zip(shares, norms, strict=True))
    directions = [s * g / n for s, g, n in zip(shares, gradients, norms, strict=True) if n > 0]
    u = np.sum(directions, axis=0) if directions else np.zeros_like(avg)
    length = np.linalg.norm(u)
    return np.asarray(avg if length < threshold else radius * u / length)


def merged(rule: MergeRule, pushes: Sequence[WeightedDelta], encoding: Encoding = Encoding.F32) -> F32:
    out = np.full(max(p.delta.size for p in pushes), np.nan, np.float32)
    outcome = merge_tensor(rule, pushes, out, encoding)
    assert not outcome.void
    return out


def pushes_of(*deltas: F32, weights: Sequence[float] | None = None) -> list[WeightedDelta]:
    return [WeightedDelta(i, 1.0 if weights is None else weights[i], d) for i, d in enumerate(deltas)]


@pytest.mark.parametrize(
    ("weights", "deltas", "expected"),
    [
        # Lengths 5 and 5, directions (.6, .8) and (.8, -.6): u = (.7, .1), |u| = √.5, result 5/√.5 · (.7, .1).
        ((1, 1), ((3, 4), (4, -3)), (4.949747468, 0.7071067812)),
        # Orthogonal, lengths 3 and 1: radius 2, direction (1, 1)/√2. (avg would give (1.5, .5).)
        ((1, 1), ((3, 0), (0, 1)), (1.414213562, 1.414213562)),
        # Weights 3:1 of orthogonal unit vectors: radius 1, u = (.75, .25), |u| = √.625.
        ((3, 1), ((1, 0), (0, 1)), (0.9486832981, 0.3162277660)),
        # The same direction: radius is the weighted mean length, (1·2 + 3·6)/4 = 5.
        ((1, 3), ((0, 2), (0, 6)), (0, 5)),
        # A zero vector has no direction but halves the radius.
        ((1, 1), ((0, 0), (3, 4)), (1.5, 2)),
        # Opposite of unlike weight: radius 1, u = (.5, 0) − so the heavier direction at full radius.
        ((3, 1), ((1, 0), (-1, 0)), (1, 0)),
    ],
)
def test_rda_matches_the_table_computed_by_hand(
    weights: tuple[float, ...], deltas: tuple[tuple[float, ...], ...], expected: tuple[float, ...]
) -> None:
    result = merged(RDA, pushes_of(*(vector(*d) for d in deltas), weights=weights))
    assert -result == pytest.approx(expected, rel=1e-7, abs=1e-7)


def test_avg_matches_the_table_computed_by_hand() -> None:
    result = merged(AVG, pushes_of(vector(4, -8), vector(0, 4), vector(8, 0), weights=(1, 2, 1)))
    assert (-result).tolist() == [3, 0]


@BOTH
@pytest.mark.parametrize("islands", [1, 2, 3, 4, 5, 9])
def test_merge_is_within_float32_rounding_of_the_float64_reference(rule: MergeRule, islands: int) -> None:
    pushes = random_pushes(islands, 3001)
    expected = reference(rule, pushes)
    error = np.abs(merged(rule, pushes) - expected)
    # The sum is rounded to float32 once; 1e-12 of the largest term is room for the order of the float64 additions.
    room = 1e-12 * max(np.abs(p.delta).max() for p in pushes)
    assert np.all(error <= np.abs(expected) * 2.0**-24 * 1.0001 + room)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from([AVG, RDA]))
def test_any_small_merge_is_the_float64_reference(islands: int, n: int, seed: int, rule: MergeRule) -> None:
    pushes = random_pushes(islands, n, seed)
    expected = reference(rule, pushes)
    assert np.linalg.norm(merged(rule, pushes) - expected) <= 1e-6 * np.linalg.norm(expected) + 1e-30


@BOTH
def test_lengths_are_summed_over_all_ranges_of_a_tensor(rule: MergeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_module, "RANGE_ELEMENTS", 512)
    pushes = random_pushes(3, 3001)
    expected = reference(rule, pushes)
    assert np.linalg.norm(merged(rule, pushes) - expected) <= 1e-7 * np.linalg.norm(expected)


def touchy_deltas() -> list[F32]:
    """Deltas whose float64 sum depends on the order of the additions: two huge ones cancel, two small ones are left."""
    a, b, c = (p.delta for p in random_pushes(3, 1777))
    huge = a * np.float32(2.0**70)
    deltas = [huge, b, -huge, c]
    sums = {np.sum([d.astype(np.float64) for d in order], axis=0).tobytes() for order in itertools.permutations(deltas)}
    assert len(sums) > 1
    return deltas


@BOTH
def test_order_of_arrival_does_not_change_a_byte(rule: MergeRule) -> None:
    pushes = pushes_of(*touchy_deltas())
    results = {merged(rule, order).tobytes() for order in itertools.permutations(pushes)}
    assert len(results) == 1


@BOTH
def test_carried_push_of_an_island_is_added_before_its_fresh_one_whatever_came_first(rule: MergeRule) -> None:
    deltas = touchy_deltas()
    keys = [(0, 3), (0, 5), (0, 6), (1, 3)]
    pushes = [WeightedDelta(i, 1.0, d, version) for (i, version), d in zip(keys, deltas, strict=True)]
    results = {merged(rule, order).tobytes() for order in itertools.permutations(pushes)}
    assert results == {merged(rule, pushes_of(*deltas)).tobytes()}


@BOTH
def test_one_island_comes_through_with_its_bits(rule: MergeRule) -> None:
    delta = np.concatenate([random_pushes(1, 3000)[0].delta, vector(0.0, -0.0, 1e-45, -3e38)])
    assert merged(rule, [WeightedDelta(7, 0.3, delta)]).tobytes() == (-delta).tobytes()


@BOTH
@pytest.mark.parametrize("islands", [2, 3, 5])
def test_equal_islands_give_what_one_gives(rule: MergeRule, islands: int) -> None:
    delta = random_pushes(1, 3000)[0].delta
    pushes = [WeightedDelta(i, 0.1 + 0.3 * i, delta.copy()) for i in range(islands)]
    assert np.array_equal(merged(rule, pushes), -delta)


@BOTH
@pytest.mark.parametrize("scale", [2.0**-40, 0.5, -4.0, 2.0**30])
def test_scaling_all_deltas_scales_the_result(rule: MergeRule, scale: float) -> None:
    pushes = random_pushes(3, 2000)
    scaled = [WeightedDelta(p.island_id, p.weight, p.delta * np.float32(scale)) for p in pushes]
    assert np.allclose(merged(rule, scaled), merged(rule, pushes) * np.float32(scale), rtol=1e-6, atol=0)


@BOTH
def test_scaling_all_weights_changes_nothing(rule: MergeRule) -> None:
    pushes = random_pushes(3, 2000)
    heavier = [WeightedDelta(p.island_id, p.weight * 1024, p.delta) for p in pushes]
    assert np.array_equal(merged(rule, heavier), merged(rule, pushes))


def test_rda_has_the_mean_length_of_its_islands() -> None:
    pushes = random_pushes(4, 5000)
    total = sum(p.weight for p in pushes)
    radius = sum(p.weight / total * np.linalg.norm(p.delta.astype(np.float64)) for p in pushes)
    assert np.linalg.norm(merged(RDA, pushes).astype(np.float64)) == pytest.approx(radius, rel=1e-7)


def cancelling(length: float) -> list[WeightedDelta]:
    """Two unit vectors, equally weighted, whose mean direction has about the given length."""
    return pushes_of(vector(1, 0), vector(-1, 2 * length))


@pytest.mark.parametrize(
    ("encoding", "threshold"), [(Encoding.F32, 1e-6), (Encoding.BF16, 1e-2), (Encoding.INT8, 0.1), (Encoding.Q4, 0.1)]
)
def test_rda_falls_back_to_avg_below_the_threshold_of_the_encoding(encoding: Encoding, threshold: float) -> None:
    assert rda_threshold(encoding) == threshold
    below, above = cancelling(threshold * 0.9), cancelling(threshold * 1.1)
    assert merged(RDA, below, encoding).tobytes() == merged(AVG, below).tobytes()
    assert np.linalg.norm(merged(RDA, above, encoding)) == pytest.approx(1.0, rel=0.03)


@BOTH
def test_zero_deltas_of_all_islands_give_zero(rule: MergeRule) -> None:
    assert not merged(rule, pushes_of(vector(0, 0), vector(0, 0))).any()


@BOTH
def test_weight_zero_is_not_read_and_may_be_empty(rule: MergeRule) -> None:
    pushes = random_pushes(3, 100)
    silent = [WeightedDelta(8, 0.0, np.empty(0, np.float32)), WeightedDelta(9, 0.0, np.full(100, np.nan, np.float32))]
    assert np.array_equal(merged(rule, [*silent, *pushes]), merged(rule, pushes))


@BOTH
def test_nobody_trained_is_void(rule: MergeRule) -> None:
    outcome = merge_tensor(rule, [WeightedDelta(0, 0.0, vector(1.0))], vector(5.0))
    assert outcome == MergeOutcome(finite=False, offenders=(), total_weight=0.0)
    assert outcome.void


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_islands_with_numbers_that_are_not_finite_are_named(rule: MergeRule, bad: float) -> None:
    pushes = random_pushes(5, 2000)
    pushes[3].delta[1999] = bad
    pushes[1].delta[0] = -bad
    outcome = merge_tensor(rule, pushes[::-1], np.empty(2000, np.float32))
    assert outcome.void and outcome.offenders == (1, 3) and not outcome.finite


def test_finite_deltas_whose_step_overflows_are_void_without_offender() -> None:
    plan = MergePlan((TensorSlot(0, 2, AVG),), OuterSettings(lr=10.0))
    outcome = merge_and_step_fragment(
        plan, pushes_of(vector(3e38, 0)), OuterState(vector(0, 0)), OuterState(vector(0, 0))
    )
    assert outcome.void and outcome.offenders == ()


def fragment(sizes: Sequence[int]) -> tuple[TensorSlot, ...]:
    return slots_of(zip(sizes, itertools.cycle([RDA, AVG, RDA]), strict=False))


def state_of(n: int, seed: int = 5) -> OuterState:
    rng = np.random.default_rng(seed)
    return OuterState(rng.standard_normal(n).astype("f4"), rng.standard_normal(n).astype("f4"))


def blank(n: int) -> OuterState:
    return OuterState(np.full(n, np.nan, np.float32), np.full(n, np.nan, np.float32))


def bits(state: OuterState) -> tuple[bytes, bytes]:
    assert state.momentum is not None
    return state.values.tobytes(), state.momentum.tobytes()


@pytest.mark.parametrize("islands", [1, 3, 4, 6])
@pytest.mark.parametrize("outer", [NESTEROV, OuterSettings(0.7, 0.9), PLAIN], ids=["nesterov", "momentum", "plain"])
def test_fused_fragment_has_the_bits_of_merge_then_step_per_tensor(outer: OuterSettings, islands: int) -> None:
    slots = fragment([1, 1500, 0, 1024, 37])
    n = sum(s.size for s in slots)
    pushes, state = random_pushes(islands, n), state_of(n)
    fused, apart = blank(n), blank(n)
    assert not merge_and_step_fragment(MergePlan(slots, outer), pushes, state, fused).void
    assert state.momentum is not None and apart.momentum is not None
    for slot in slots:
        part = slice(slot.offset, slot.offset + slot.size)
        gradient = np.empty(slot.size, np.float32)
        own = [WeightedDelta(p.island_id, p.weight, p.delta[part]) for p in pushes]
        merge_tensor(slot.rule, own, gradient)
        before = OuterState(state.values[part], state.momentum[part])
        outer_step(before, gradient, outer, OuterState(apart.values[part], apart.momentum[part]))
    assert bits(fused) == bits(apart)


def test_one_island_with_rate_one_and_no_momentum_adds_its_delta() -> None:
    state = state_of(2000)
    (push,) = random_pushes(1, 2000)
    out = OuterState(np.empty(2000, np.float32))
    merge_and_step_fragment(MergePlan(fragment([1000, 1000]), PLAIN), [push], OuterState(state.values), out)
    assert out.values.tobytes() == (state.values + push.delta).tobytes()


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_module, "RANGE_ELEMENTS", 4096)
    slots = fragment([20 * 4096 + 321, 5 * 4096, 3 * 4096 + 1])
    n = sum(slot.size for slot in slots)
    plan, pushes, state = MergePlan(slots, NESTEROV), random_pushes(3, n), state_of(n)
    results = set()
    for threads in (None, 1, 3):
        out = blank(n)
        if threads is None:
            merge_and_step_fragment(plan, pushes, state, out)
        else:
            with ThreadPoolExecutor(threads) as pool:
                merge_and_step_fragment(plan, pushes[::-1], state, out, pool)
        results.add(bits(out))
    assert len(results) == 1


def mixed(n: int, key: int) -> F32:
    """Numbers in [-1, 1) that no library's random generator can change."""
    return (((np.arange(n) * 2654435761 + key * 40503) % 65536) / 32768 - 1).astype(np.float32)


def test_bits_are_golden_on_every_machine() -> None:
    slots = fragment([3000, 1000, 2345])
    n = sum(slot.size for slot in slots)
    pushes = [WeightedDelta(i, 1.0 + i, mixed(n, i) * np.float32(0.01 * (i + 1))) for i in range(5)]
    out = blank(n)
    merge_and_step_fragment(MergePlan(slots, NESTEROV), pushes, OuterState(mixed(n, 77), mixed(n, 78)), out)
    assert out.momentum is not None
    assert (fragment_digest(out.values), fragment_digest(out.momentum)) == (
        "ac638aca9491c9e4d972c5cca486ecaa",
        "c93a934f6f0e01f9ac45ee4aa5ece7d6",
    )


def test_void_fragment_leaves_the_state_as_it_was() -> None:
    pushes, state = random_pushes(3, 2000), state_of(2000)
    before = bits(state)
    pushes[2].delta[77] = np.nan
    outcome = merge_and_step_fragment(MergePlan(fragment([1000, 1000]), NESTEROV), pushes, state, blank(2000))
    assert outcome.offenders == (2,) and outcome.void
    assert bits(state) == before


def test_warm_up_compiles_all_that_the_callers_need() -> None:
    compiled = [f for f in vars(kernels).values() if hasattr(f, "signatures")]
    before = [len(f.signatures) for f in compiled]
    pushes = random_pushes(3, 100)
    for outer in (NESTEROV, PLAIN):
        merge_and_step_fragment(MergePlan(fragment([60, 40]), outer), pushes, state_of(100), blank(100))
        outer_step(state_of(100), pushes[0].delta, outer, blank(100))
    merge_tensor(RDA, pushes, np.empty(100, np.float32))
    assert [len(f.signatures) for f in compiled] == before
    assert len(before) >= 14


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: [*p, WeightedDelta(0, 1.0, p[0].delta)], "one contribution per island and base version"),
        (lambda p: [WeightedDelta(4, -1.0, p[0].delta)], "island 4: expected a finite weight"),
        (lambda p: [WeightedDelta(4, float("inf"), p[0].delta)], "island 4: expected a finite weight"),
        (lambda p: [WeightedDelta(4, 1.0, p[0].delta[:9])], r"delta of island 4: expected 10 .* \(9,\)"),
        (lambda p: [WeightedDelta(4, 1.0, p[0].delta.astype("f8"))], "delta of island 4: .* float64"),
        (lambda p: [WeightedDelta(4, 1.0, np.zeros(20, "f4")[::2])], "delta of island 4"),
    ],
)
def test_contributions_that_do_not_fit_are_named(
    change: Callable[[list[WeightedDelta]], list[WeightedDelta]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        merge_tensor(RDA, change(random_pushes(2, 10)), np.empty(10, np.float32))


def test_slots_lie_one_after_the_other() -> None:
    assert slots_of([(3, AVG), (5, RDA)]) == (TensorSlot(0, 3, AVG), TensorSlot(3, 5, RDA))


def test_tensors_that_do_not_tile_the_fragment_are_refused() -> None:
    for slots, message in (
        ((TensorSlot(0, 4, AVG), TensorSlot(5, 5, AVG)), "tensor 1: expected offset 4"),
        ((TensorSlot(0, 9, AVG),), "have 9 elements together; the fragment has 10"),
    ):
        with pytest.raises(ValueError, match=message):
            merge_and_step_fragment(MergePlan(slots, NESTEROV), random_pushes(2, 10), state_of(10), blank(10))
