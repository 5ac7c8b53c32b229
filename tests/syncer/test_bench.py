"""The bench of the brain: every event of a fleet is counted, and all of them learn."""

from __future__ import annotations

import pytest

from syncer.bench import Meter, fleet, measure


def test_every_round_is_four_events_an_island_and_a_merge_and_commits() -> None:
    meter = Meter(fleet(3, 2))
    for t in (1, 2, 3):
        meter.round(t)
        assert (meter.events, meter.commits) == (t * (3 * 4 + 1), t)
    assert {fragment: name.version for fragment, name in meter.fleet.values.items()} == {0: 3, 1: 2}
    meter.fleet.brain.validate()


def test_figures_are_of_all_events() -> None:
    figures = measure(2, 1, 2)
    assert set(figures) == {"events", "events_per_s", "slowest_event_ms"}
    assert figures["events"] == 2 * (2 * 4 + 1)


def test_round_that_does_not_commit_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meter, "round", lambda self, t: None)
    with pytest.raises(AssertionError, match="0 commits in 2 rounds"):
        measure(2, 1, 2)
