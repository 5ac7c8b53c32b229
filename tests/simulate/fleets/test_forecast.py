"""What the planner finds, against closed forms and against itself."""

from __future__ import annotations

import msgspec
import pytest

from swift_diloco.core.formats.tape_lines import Joined
from swift_diloco.simulate.fleets.fleet import Fleet, Mode, closed_form
from swift_diloco.simulate.fleets.forecast import Forecast, Together, forecast, lasting

CALM = Fleet(islands=3, parameters=1e9, interruption_s=1e15, hours=0.1, fragments=4, sync_every_steps=8)
BUSY = Fleet(islands=3, chips=1000, interruption_s=3e5, stop_s=30.0, repair_s=600.0, hours=0.15, fragments=4, seed=5)
"""An interruption of each island every five minutes."""


def changed(fleet: Fleet, **changes: object) -> Fleet:
    return msgspec.structs.replace(fleet, **changes)


def test_a_fleet_without_failures_has_goodput_1() -> None:
    found = forecast(CALM)
    assert found.goodput == pytest.approx(1.0, abs=1e-6) and found.utilisation == pytest.approx(1.0, abs=1e-6)
    assert found.interruptions == 0 and found.parked == 0.0 and found.syncer_cost == pytest.approx(0.0, abs=1e-6)
    assert forecast(changed(CALM, islands=1)).goodput == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("checkpoint_steps", [1, 20])
@pytest.mark.parametrize("restart_s", [0.0, 300.0])
def test_one_plain_island_meets_its_closed_form(checkpoint_steps: int, restart_s: float) -> None:
    fleet = Fleet(islands=1, mode=Mode.PLAIN, chips=1000, interruption_s=3e5, restart_s=restart_s)
    fleet = changed(fleet, checkpoint_steps=checkpoint_steps)
    assert lasting(fleet).goodput == pytest.approx(closed_form(fleet), rel=0.02)


def test_one_elastic_island_meets_its_closed_form() -> None:
    fleet = changed(BUSY, islands=1, repair_s=3e3, group_chips=8)
    assert lasting(fleet).goodput == pytest.approx(closed_form(fleet), rel=0.02)
    assert closed_form(fleet) < 0.85


def test_the_brains_cost_elastic_islands_next_to_nothing() -> None:
    found = forecast(BUSY)
    assert found.interruptions > 0
    assert found.goodput == pytest.approx(closed_form(BUSY), rel=0.03)
    assert 0.0 <= found.syncer_cost < 0.02


def test_a_seed_gives_the_same_forecast_again_and_another_seed_another() -> None:
    assert forecast(BUSY) == forecast(BUSY)
    assert forecast(BUSY) != forecast(changed(BUSY, seed=6))


def test_plain_islands_are_restarted_and_join_again() -> None:
    fleet = changed(BUSY, mode=Mode.PLAIN, restart_s=60.0, checkpoint_steps=5, hours=0.3)
    world = Together(fleet)
    found = world.run()
    joined = world.history.lines(Joined)
    assert len(joined) > 8 and found.interruptions > 8
    assert all(life.checkpoint.step > 5 for life in world.lives.values()), "they go on where they were"
    assert found.utilisation > found.goodput > 0.5


def test_bytes_follow_from_rounds_and_encodings() -> None:
    f32, q4 = forecast(CALM), forecast(changed(CALM, encoding="q4", publish_encoding="bf16"))
    each = CALM.fragment_bytes("f32")
    assert f32.pushed_bytes == pytest.approx(3 * f32.outer_steps * each, rel=0.2)
    assert q4.pushed_bytes / q4.outer_steps == pytest.approx(f32.pushed_bytes / f32.outer_steps * 0.129, rel=0.2)
    assert q4.fetched_bytes / q4.outer_steps == pytest.approx(f32.fetched_bytes / f32.outer_steps / 2, rel=0.2)


def test_a_narrow_link_makes_deltas_older() -> None:
    wide, narrow = forecast(CALM), forecast(changed(CALM, bandwidth=0.3e9))
    assert narrow.staleness_steps > 1.2 * wide.staleness_steps
    assert narrow.link_share > 0.5 > wide.link_share


def test_a_step_needs_min_islands_so_waiting_is_told() -> None:
    found: Forecast = forecast(changed(BUSY, mode=Mode.PLAIN, restart_s=120.0, checkpoint_steps=5, min_islands=3))
    assert found.parked > 0.02 and found.syncer_cost > 0.02
