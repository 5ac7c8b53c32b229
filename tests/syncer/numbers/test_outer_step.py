"""An outer step from deltas that stay encoded: the same bits as decoding first, with less memory."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import syncer.numbers.outer_step as merging
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.numbers.merge import MergePlan, WeightedDelta, merge_and_step_fragment
from swift_diloco.core.numbers.outer_optimizer import RANGE_ELEMENTS, OuterSettings, OuterState
from syncer.numbers.deltas import FlatDelta
from syncer.numbers.outer_step import Weighted, merge_pushes
from tests.syncer.numbers.encoded import LOSSY, SIZE, SLOTS, encoded, floats


@pytest.mark.parametrize("scratch_bytes", [4, 9 << 20, 1 << 30])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_merging_encoded_deltas_gives_the_bits_of_decoding_them_first(
    monkeypatch: pytest.MonkeyPatch, scratch_bytes: int, momentum: float
) -> None:
    monkeypatch.setattr(merging, "SCRATCH_BYTES", scratch_bytes)
    plan = MergePlan(SLOTS, OuterSettings(0.7, momentum, momentum > 0), Encoding.INT8)
    one, one_flat = encoded(floats(2), Encoding.INT8)
    two = floats(3)
    state = OuterState(floats(4), floats(5) if momentum else None)
    results = []
    with ThreadPoolExecutor(2) as pool:
        for encoded_ones in (True, False):
            out = OuterState(np.empty(SIZE, np.float32), np.empty(SIZE, np.float32))
            if encoded_ones:
                pushes = [
                    Weighted(0, 2.0, one, 0),
                    Weighted(1, 1.0, FlatDelta(two), 1),
                    Weighted(2, 0.0, one, 2),
                ]
                outcome = merge_pushes(plan, pushes, state, out, pool)
            else:
                given = [WeightedDelta(0, 2.0, one_flat, 0), WeightedDelta(1, 1.0, two, 1)]
                outcome = merge_and_step_fragment(plan, given, state, out, pool)
            assert not outcome.void and outcome.total_weight == 3.0
            results.append(out)
    assert (results[0].values == results[1].values).all()
    assert results[0].momentum is not None and results[1].momentum is not None
    assert not momentum or (results[0].momentum == results[1].momentum).all()


@pytest.mark.parametrize("scratch_bytes", [4, 1 << 30])
@pytest.mark.parametrize("encoding", LOSSY)
def test_an_encoded_delta_that_is_not_finite_names_its_island(
    monkeypatch: pytest.MonkeyPatch, encoding: Encoding, scratch_bytes: int
) -> None:
    monkeypatch.setattr(merging, "SCRATCH_BYTES", scratch_bytes)
    bad = floats(6)
    bad[SIZE // 2] = np.inf
    pushes = [Weighted(3, 1.0, encoded(bad, encoding)[0]), Weighted(4, 1.0, encoded(floats(7), encoding)[0])]
    out = OuterState(np.empty(SIZE, np.float32))
    outcome = merge_pushes(MergePlan(SLOTS, OuterSettings(1.0)), pushes, OuterState(floats(8)), out, None)
    assert outcome.void and outcome.offenders == (3,)


def test_a_large_tensor_is_merged_within_the_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six islands' deltas of 12 MB each, decoded within a window of 4 MiB and some rows each."""
    monkeypatch.setattr(merging, "SCRATCH_BYTES", 1 << 20)
    pushes = [Weighted(i, 1.0, encoded(floats(i), Encoding.Q4)[0]) for i in range(6)]
    out, state = OuterState(np.empty(SIZE, np.float32)), OuterState(floats(8))
    plan = MergePlan(SLOTS, OuterSettings(1.0), Encoding.Q4)
    merge_pushes(plan, pushes, state, out, None)
    tracemalloc.start()
    try:
        merge_pushes(plan, pushes, state, out, None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    window = 4 * (RANGE_ELEMENTS + 2 * 500_000)
    assert peak < 6 * window + (4 << 20) < 6 * 4 * SIZE


def test_all_weights_zero_take_no_step() -> None:
    out = OuterState(np.empty(SIZE, np.float32))
    pushes = [Weighted(0, 0.0, encoded(floats(9), Encoding.Q4)[0])]
    outcome = merge_pushes(MergePlan(SLOTS, OuterSettings(1.0)), pushes, OuterState(floats(8)), out, None)
    assert outcome.void and outcome.offenders == () and outcome.total_weight == 0
