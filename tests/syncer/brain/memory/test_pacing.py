"""The arithmetic of pacing as tables."""

from __future__ import annotations

import pytest

from syncer.brain.memory.pacing import (
    grace_cap,
    grace_s,
    kth_smallest,
    launch_gap_s,
    pipeline_of,
    quorum_of,
    spare_s,
    weight_of,
)


@pytest.mark.parametrize(
    ("quorum", "min_islands", "present", "k"),
    [
        (0, 1, 1, 1),
        (0, 1, 2, 1),
        (0, 1, 3, 2),
        (0, 1, 4, 2),
        (0, 1, 5, 3),
        (0, 3, 2, 3),
        (4, 1, 3, 3),
        (2, 1, 5, 2),
        (2, 4, 5, 4),
        (0, 1, 0, 1),
    ],
)
def test_quorum_is_half_rounded_up_and_never_below_min_islands(
    quorum: int, min_islands: int, present: int, k: int
) -> None:
    assert quorum_of(quorum, min_islands, present) == k


@pytest.mark.parametrize(
    ("pipeline", "fragments", "every", "rounds"),
    [(0, 1, 24, 1), (0, 2, 24, 2), (0, 8, 24, 2), (0, 96, 24, 5), (0, 8, 1, 8), (3, 8, 24, 3), (9, 8, 24, 8)],
)
def test_pipeline_holds_what_h_steps_need_and_never_two_rounds_on_a_fragment(
    pipeline: int, fragments: int, every: int, rounds: int
) -> None:
    assert pipeline_of(pipeline, fragments, every) == rounds


def test_kth_smallest_takes_the_largest_when_fewer_are_known() -> None:
    assert kth_smallest([3.0, None, 1.0, 2.0], 2) == 2.0
    assert kth_smallest([3.0, None], 2) == 3.0
    assert kth_smallest([None], 1) is None


def test_launches_are_spread_evenly_over_h_steps_but_not_below_the_floor() -> None:
    assert launch_gap_s(0.0, 24, 8, 2.0) == 6.0
    assert launch_gap_s(7.0, 24, 8, 2.0) == 7.0
    assert launch_gap_s(0.5, 24, 8, None) == 0.5


@pytest.mark.parametrize(
    ("step_time", "quorum_s", "sync_s", "grace"),
    [(None, 9.0, 9.0, 1.0), (10.0, 0.0, 0.0, 1.0), (1.0, 1.0, 0.5, 0.4), (1.0, 3.0, 0.0, 0.0), (0.5, 0.5, 0.0, 0.4)],
)
def test_grace_is_a_share_of_the_time_to_spare_within_the_cap(
    step_time: float | None, quorum_s: float, sync_s: float, grace: float
) -> None:
    assert grace_s(0.8, spare_s(2.0, step_time, quorum_s, sync_s), 1.0) == pytest.approx(grace)


@pytest.mark.parametrize(
    ("cap_s", "step_time", "longest"), [(1.0, 30.0, 30.0), (1.0, 0.1, 1.0), (1.0, None, 1.0), (0.0, 30.0, 0.0)]
)
def test_the_longest_grace_is_a_local_step_where_that_is_longer(
    cap_s: float, step_time: float | None, longest: float
) -> None:
    assert grace_cap(cap_s, step_time) == longest


def test_weight_is_tokens_squared_per_step_or_equal_and_zero_without_steps() -> None:
    assert weight_of("tokens2_per_step", 4, 10) == 25.0
    assert weight_of("equal", 4, 10) == 1.0
    assert weight_of("tokens2_per_step", 0, 0) == weight_of("equal", 0, 0) == 0.0
