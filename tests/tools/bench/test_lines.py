"""One figure as a line of JSON."""

from __future__ import annotations

import json

import pytest

from swift_diloco.tools.bench.lines import line, median, say, short

KEYS = ["name", "value", "unit", "ceiling", "ratio", "target", "better", "met", "load", "details"]


def test_a_line_is_json_with_its_keys_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    say(line("copy", "GB/s", (1.0, 4.0, 0.5), elements=3))
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == KEYS
    assert (shown["ratio"], shown["met"], shown["details"]) == (0.25, False, {"elements": 3})


@pytest.mark.parametrize(("better", "met"), [("higher", False), ("lower", True)])
def test_whether_a_target_is_met_depends_on_its_direction(better: str, met: bool) -> None:
    assert line("x", "s", (1.0, 4.0, 0.5), better).met is met  # type: ignore[arg-type]


def test_figure_without_a_ceiling_is_infinitely_better_than_it() -> None:
    assert line("x", "s", (1.0, 0.0, 0.5)).ratio == float("inf")


def test_figures_have_four_digits_and_nothing_has_a_median_of_0() -> None:
    assert [short(123_456.0), short(0.000123456)] == [123_500.0, 0.0001235]
    assert [median([3.0, 1.0, 2.0]), median([])] == [2.0, 0.0]
