"""Interruptions of one island: a Poisson process that stops it and takes chips away."""

from __future__ import annotations

import pytest

from swift_diloco.simulate.fleets.fleet import Fleet, Mode
from swift_diloco.simulate.fleets.interruptions import Trace

FLEET = Fleet(islands=1, chips=1000, group_chips=10, interruption_s=1e6, repair_s=5e3, stop_s=50.0)
"""An interruption every 1000 s."""


def test_the_same_seed_and_island_give_the_same_trace() -> None:
    first, again, other = Trace(FLEET, 0), Trace(FLEET, 0), Trace(FLEET, 1)
    stops = [first.stop(at).at_s for at in range(0, 100_000, 500)]
    assert stops == [again.stop(at).at_s for at in range(0, 100_000, 500)]
    assert stops != [other.stop(at).at_s for at in range(0, 100_000, 500)]


def test_stops_last_as_long_as_the_fleet_says_and_do_not_overlap() -> None:
    trace, now, before = Trace(FLEET, 0), 0.0, 0.0
    for _ in range(1000):
        stop = trace.stop(now)
        assert stop.until_s == pytest.approx(stop.at_s + 50.0) and stop.at_s >= before
        now = before = stop.until_s


def test_interruptions_come_at_their_rate() -> None:
    trace = Trace(FLEET, 0)
    trace.stop(10_000_000.0)
    assert trace.interruptions == pytest.approx(10_000, rel=0.03)


def test_as_many_chips_are_missing_as_repair_takes() -> None:
    trace = Trace(FLEET, 0)
    seen = []
    for at in range(0, 2_000_000, 100):
        trace.stop(float(at))
        seen.append(trace.chips(float(at)))
    assert seen[0] < 1000, "what was interrupted before the beginning is under repair"
    assert sum(seen) / len(seen) == pytest.approx(950.0, rel=0.01)
    assert {1000 - chips for chips in seen} <= set(range(0, 1000, 10))


def test_a_plain_island_has_all_its_chips_when_it_runs() -> None:
    trace = Trace(Fleet(islands=1, chips=1000, mode=Mode.PLAIN, interruption_s=1e6), 0)
    for at in range(0, 100_000, 100):
        trace.stop(float(at))
        assert trace.chips(float(at)) == 1000
