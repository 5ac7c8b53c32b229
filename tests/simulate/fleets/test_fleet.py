"""What follows from a fleet by arithmetic, and what cannot be simulated."""

from __future__ import annotations

from math import exp

import msgspec
import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.simulate.fleets.fleet import YEAR_S, Fleet, Mode, check_fleet, closed_form


def test_a_chip_a_year_in_a_million_chips_is_one_interruption_in_half_a_minute() -> None:
    assert 1 / Fleet(chips=1_200_000).interruptions_per_s == pytest.approx(26.298)
    assert Fleet(chips=12, interruption_s=24.0).interruptions_per_s == 0.5


def test_the_closed_form_is_up_time_over_cycle_when_steps_are_short() -> None:
    fleet = Fleet(islands=1, mode=Mode.PLAIN, chips=100, interruption_s=1e4, restart_s=300.0, step_s=1e-3)
    short = msgspec.structs.replace(fleet, checkpoint_steps=1)
    assert closed_form(short) == pytest.approx(100.0 / 400.0, rel=1e-4)


def test_the_closed_form_knows_what_is_trained_again() -> None:
    # Λ = 1/100 s, a checkpoint every 100 s: of a cycle of 100 s + 300 s, e^-1 / (1 − e^-1) checkpoints are reached.
    fleet = Fleet(islands=1, mode=Mode.PLAIN, chips=100, interruption_s=1e4, restart_s=300.0, step_s=10.0)
    fleet = msgspec.structs.replace(fleet, checkpoint_steps=10)
    assert closed_form(fleet) == pytest.approx(100.0 * exp(-1) / (1 - exp(-1)) / 400.0)


def test_chips_under_repair_are_missing() -> None:
    fleet = Fleet(
        islands=1, chips=1000, group_chips=10, interruption_s=1e6, repair_s=5e3, stop_s=0.0, step_s=1e-3
    )  # 10 · 5e3 / 1e6 = 5 %
    assert closed_form(fleet) == pytest.approx(0.95, rel=1e-5)


def test_a_fragment_on_the_wire_is_as_large_as_its_encoding_says() -> None:
    fleet = Fleet(parameters=1e9, fragments=10)
    assert fleet.fragment_bytes("f32") == 400_000_000
    assert fleet.fragment_bytes("bf16") == 200_000_000
    assert fleet.fragment_bytes("q4") == round(1e8 * 132 / 256 + 1e8 * (0.516 - 132 / 256))


def test_a_merge_reads_each_delta_twice_and_moves_four_streams_besides() -> None:
    fleet = Fleet(islands=4, parameters=1e9, fragments=10, syncer_bytes_s=48e8)
    assert fleet.merge_s == pytest.approx(12 * 4 * 1e8 / 48e8)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"islands": 0}, "--islands 0: expected 1 to 64"),
        ({"chips": 0}, "--chips 0"),
        ({"step_s": 0.0}, "--step 0"),
        ({"group_chips": 300}, "--group-chips 300 is above --chips 256"),
        ({"min_islands": 5}, "--min-islands 5 is above --islands 4"),
        ({"quorum": 5}, "--quorum 5 is above --islands 4"),
        ({"encoding": "int3"}, "expected one of f32, bf16, int8, q4"),
        ({"hours": 0.0}, "--hours 0"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused_by_option(change: dict[str, object], text: str) -> None:
    with pytest.raises(UserError, match=text):
        check_fleet(msgspec.structs.replace(Fleet(), **change))


def test_the_usual_fleet_is_a_good_one() -> None:
    check_fleet(Fleet())
    assert Fleet().interruption_s == YEAR_S
