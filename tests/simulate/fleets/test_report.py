"""How forecasts are told."""

from __future__ import annotations

import dataclasses
import json

import msgspec

from swift_diloco.simulate.fleets.fleet import Fleet, Mode
from swift_diloco.simulate.fleets.forecast import Forecast
from swift_diloco.simulate.fleets.paper import PaperRow
from swift_diloco.simulate.fleets.report import (
    HEAD,
    PAPER_HEAD,
    WORDS,
    aligned,
    cells_of,
    json_of,
    paper_cells,
    paper_json,
    paper_text,
    percent,
    text_of,
)

ROW = PaperRow(1_200_000, 8, "elastic", 0.876, 0.88, 0.01, 20.5)


ALONE = Forecast(goodput=0.5, utilisation=0.75, interruptions=2, hours=2.0, stopped=0.125)
TOGETHER = Forecast(
    goodput=0.9, utilisation=0.95, interruptions=2, hours=2.0, stopped=0.05, syncer_cost=0.01, merged=0.99,
    staleness_steps=12.34, staleness_steps_max=30, outer_steps=3000, pushed_bytes=1_500_000_000,
    fetched_bytes=2_500_000_000, link_share=0.2, link_gbit_s=1.2345,
)  # fmt: skip


def test_row_of_a_lone_island_has_nothing_to_tell_of_a_syncer() -> None:
    assert cells_of(Fleet(islands=1, chips=1024), ALONE) == (
        "1", "1,024", "elastic", "50.0 %", "75.0 %", "12.5 %", *["-"] * 6
    )  # fmt: skip


def test_row_of_several_islands_tells_what_they_share() -> None:
    assert cells_of(Fleet(islands=4, chips=256, mode=Mode.PLAIN), TOGETHER) == (
        "4", "1,024", "plain", "90.0 %", "95.0 %", "5.0 %", "1.0 %", "99.0 %", "12.3, 30", "1,500", "1.23", "20.0 %"
    )  # fmt: skip


def test_text_ends_in_the_meaning_of_its_columns_and_tells_the_traffic_of_several_islands() -> None:
    text = text_of([(Fleet(islands=1), ALONE), (Fleet(islands=4), TOGETHER)])
    assert "\n4 islands: 1.5 GB pushed and 2.5 GB fetched in 2 simulated hours\n" in text and "1 islands:" not in text
    assert [line.partition(":")[0].strip() for line in text.splitlines()[-len(WORDS) :]] == list(WORDS)
    assert set(WORDS) <= set(HEAD)


def test_json_has_a_row_per_fleet_with_all_that_was_found() -> None:
    (row,) = json.loads(json_of([(Fleet(islands=4), TOGETHER)]))["rows"]
    assert row.pop("fleet")["islands"] == 4
    assert row == dataclasses.asdict(TOGETHER)


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert aligned(["a", "long"], [["123", "4"], ["5", "67"]]).splitlines() == ["  a  long", "123     4", "  5    67"]


def test_shares_are_percent_with_one_digit() -> None:
    assert [percent(share) for share in (0.0, 0.12345, 1.0)] == ["0.0 %", "12.3 %", "100.0 %"]


def test_comparison_tells_the_difference_in_points_with_its_sign() -> None:
    assert paper_cells(ROW) == ("1,200,000", "8", "elastic", "87.6 %", "88 %", "-0.4")
    assert paper_text([ROW]).split()[:6] == list(PAPER_HEAD)
    (row,) = json.loads(paper_json([ROW]))["rows"]
    assert row == msgspec.to_builtins(ROW)
