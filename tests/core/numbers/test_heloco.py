"""The correction against the outer momentum, against values computed by hand and a float64 reference."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from swift_diloco.core.numbers.heloco import HelocoSettings, correct, correction
from swift_diloco.core.numbers.merge import MergeRule, TensorSlot

F32 = NDArray[np.float32]


def corrected(gradient: list[float], momentum: list[float]) -> list[float]:
    """The corrected outer gradient of one tensor."""
    delta = -np.array(gradient, dtype=np.float32)
    correct([delta], np.array(momentum, dtype=np.float32), [TensorSlot(0, delta.size, MergeRule.AVG)])
    return [float(value) for value in -delta]


def test_an_aligned_update_keeps_its_bits() -> None:
    assert corrected([1.0, 1.0], [1.0, 0.0]) == [1.0, 1.0]  # 45 degrees


def test_an_opposite_update_of_equal_length_loses_half_of_what_runs_against_the_momentum() -> None:
    # c = -1, conf = 1/2, beta = 1/2: g - (1/2)(-1)|g| m/|m|
    assert corrected([-2.0, 0.0], [2.0, 0.0]) == [-1.0, 0.0]


def test_only_the_part_along_the_momentum_changes_in_a_conflict() -> None:
    across_before, across_after = 3.0, corrected([-4.0, 3.0], [5.0, 0.0])[1]
    assert across_after == across_before


def test_an_update_across_the_momentum_is_turned_towards_it_and_keeps_its_length() -> None:
    # c = 0, conf = 1/2, lambda = 1/4: u = (1/4, 3/4) / sqrt(10/16), times |g| = 1
    x, y = corrected([0.0, 1.0], [1.0, 0.0])
    assert (x, y) == pytest.approx((0.25 / math.sqrt(0.625), 0.75 / math.sqrt(0.625)), rel=1e-6)
    assert math.hypot(x, y) == pytest.approx(1.0, rel=1e-6)


def test_without_a_direction_nothing_is_corrected() -> None:
    assert corrected([1.0, -1.0], [0.0, 0.0]) == [1.0, -1.0]
    assert corrected([0.0, 0.0], [1.0, 0.0]) == [0.0, 0.0]


def test_a_delta_that_is_not_a_number_is_left_for_the_merge_to_name() -> None:
    assert math.isnan(corrected([float("nan"), 1.0], [-1.0, 0.0])[0])


def test_never_more_is_taken_out_than_the_whole_conflicting_part() -> None:
    keep, add = correction(1.0, 1e-9, -1.0, HelocoSettings(shrink=10.0))
    assert keep == 1.0 and add * 1e-9 == pytest.approx(1.0)


@pytest.mark.parametrize("cosine", [-1.0, -0.3, 0.0, 0.2, 0.49999])
def test_the_corrected_update_is_never_less_aligned_than_before(cosine: float) -> None:
    keep, add = correction(2.0, 3.0, cosine)
    along, across = keep * 2.0 * cosine + add * 3.0, keep * 2.0 * math.sqrt(1 - cosine**2)
    assert along / math.hypot(along, across) >= cosine - 1e-12


def test_tensors_are_corrected_on_their_own_and_threads_change_no_bit() -> None:
    random = np.random.default_rng(3)
    slots = [TensorSlot(0, 70_000, MergeRule.RDA), TensorSlot(70_000, 5, MergeRule.AVG)]
    deltas: list[F32] = [random.standard_normal(70_005).astype(np.float32) for _ in range(3)]
    momentum = random.standard_normal(70_005).astype(np.float32)
    alone, shared = [d.copy() for d in deltas], [d.copy() for d in deltas]
    correct(alone, momentum, slots)
    with ThreadPoolExecutor(2) as pool:
        correct(shared, momentum, slots, pool)
    assert [d.tobytes() for d in alone] == [d.tobytes() for d in shared]
    g, m = -deltas[0][:70_000].astype(np.float64), momentum[:70_000].astype(np.float64)
    length, other = np.linalg.norm(g), np.linalg.norm(m)
    keep, add = correction(float(length), float(other), float(g @ m / length / other))
    assert np.allclose(-alone[0][:70_000], keep * g + add * m, rtol=1e-5, atol=1e-6)
