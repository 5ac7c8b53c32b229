"""How fast an island trains, as heard."""

from __future__ import annotations

import pytest

from syncer.brain.memory.step_clock import StepClock


def test_a_repeated_step_number_changes_nothing() -> None:
    clock = StepClock(0)
    seen = [(clock.advance(step, now), clock.seconds) for step, now in ((1, 100.0), (3, 104.0), (3, 105.0), (2, 106.0))]
    assert seen == [(True, None), (True, 2.0), (False, 2.0), (False, 2.0)]
    assert clock.advance(4, 116.0)
    assert clock.seconds == pytest.approx(2.0 + 0.3 * 10.0)


def test_time_across_a_pause_is_no_step_time() -> None:
    clock = StepClock(0)
    clock.advance(1, 0.0)
    clock.advance(2, 1.0)
    clock.interrupt()
    clock.advance(3, 1000.0)
    assert clock.seconds == 1.0
    clock.advance(4, 1001.0)
    assert clock.seconds == 1.0
