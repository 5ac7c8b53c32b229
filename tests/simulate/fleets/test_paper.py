"""The paper's setting: one parameter set, every figure within the stated tolerance."""

from __future__ import annotations

import pytest

from swift_diloco.simulate.fleets.fleet import closed_form
from swift_diloco.simulate.fleets.paper import CASES, TOLERANCE, Case, fleet_of, paper_rows


def test_all_cases_have_one_parameter_set() -> None:
    varied = {"islands", "chips", "mode", "hours"}
    fleets = [fleet_of(case) for case in CASES]
    for name in set(fleets[0].__struct_fields__) - varied:
        assert len({getattr(fleet, name) for fleet in fleets}) == 1, name
    assert {fleet.chips_in_all for fleet in fleets} == {1_200_000, 2_400_000}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.mode} {case.islands} of {case.chips}")
def test_the_closed_form_is_within_the_tolerance(case: Case) -> None:
    assert closed_form(fleet_of(case)) == pytest.approx(case.goodput, abs=TOLERANCE)


@pytest.mark.net
def test_the_simulation_is_within_the_tolerance_and_orders_the_cases_as_the_paper() -> None:
    rows = paper_rows()
    for row in rows:
        assert row.goodput == pytest.approx(row.paper_goodput, abs=TOLERANCE), row
        assert row.syncer_cost < 0.01
    for chips in (1_200_000, 2_400_000):
        ours = [row for row in rows if row.chips == chips]
        by_model = sorted(ours, key=lambda row: row.goodput)
        assert by_model == sorted(ours, key=lambda row: row.paper_goodput)
