"""svg.py: axes, bounds of what is drawn, tooltips."""

import re
from xml.etree import ElementTree

import pytest

from swift_diloco.charts import svg
from swift_diloco.charts.svg import Chart, Series, binary_bytes, nice_ticks, plain, render, smoothed

POINTS = ((0.0, 10.0), (5.0, 40.0), (10.0, 20.0))


def chart(*series: Series, **changes: object) -> Chart:
    return Chart("plot-x", "A & B", "x", "y", series, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (4.3, 7.6, [4, 5, 6, 7, 8]),
        (0, 0.05, [0, 0.01, 0.02, 0.03, 0.04, 0.05]),
        (3, 3, [3, 4, 5, 6]),
    ],
)
def test_ticks_are_round_and_cover_the_values(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == ticks


@pytest.mark.parametrize(
    ("value", "words"), [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (5 * 2**20, "5 MiB"), (2**40, "1,024 GiB")]
)
def test_bytes_have_binary_units(value: float, words: str) -> None:
    assert binary_bytes(value) == words


def test_numbers_have_no_idle_digits() -> None:
    assert [plain(2.0), plain(0.25), plain(1234.0), plain(1.0004)] == ["2", "0.25", "1,234", "1"]


def test_smoothing_is_the_mean_of_the_last_points() -> None:
    assert smoothed([(1, 2.0), (2, 4.0), (3, 9.0)], 2) == ((1, 2.0), (2, 3.0), (3, 6.5))


def test_a_line_lies_inside_the_plot_area_and_is_labelled() -> None:
    drawing = ElementTree.fromstring(render(chart(Series("one", POINTS, 0), Series("two", POINTS, 1, "steps"))))
    for line in drawing.iter("polyline"):
        for x, y in (pair.split(",") for pair in line.attrib["points"].split()):
            assert svg.LEFT <= float(x) <= svg.WIDTH - svg.RIGHT
            assert svg.TOP <= float(y) <= svg.HEIGHT - svg.BOTTOM
    assert drawing.attrib["aria-label"] == "A & B"
    assert {"one", "two", "x", "y"} <= {text.text for text in drawing.iter("text")}
    assert "one · x 5 · 40" in {title.text for title in drawing.iter("title")}


def test_steps_hold_their_value_until_the_next_point() -> None:
    drawing = ElementTree.fromstring(render(chart(Series("s", POINTS, 0, "steps"))))
    line = next(drawing.iter("polyline"))
    heights = [pair.split(",")[1] for pair in line.attrib["points"].split()]
    first, second, third = heights[0], heights[3], heights[5]
    assert heights == [first, first, first, second, second, third]
    assert len({first, second, third}) == 3


def test_bars_are_stacked_and_the_axis_holds_the_sum() -> None:
    series = (Series("a", ((1.0, 100.0),), 0, "bars"), Series("b", ((1.0, 300.0),), 1, "bars"))
    drawing = ElementTree.fromstring(render(chart(*series, y_unit="bytes")))
    low, high = (bar for bar in drawing.iter("rect") if bar.attrib.get("class") == "bar")
    assert float(high.attrib["y"]) + float(high.attrib["height"]) == pytest.approx(float(low.attrib["y"]), abs=0.11)
    assert float(high.attrib["height"]) == pytest.approx(3 * float(low.attrib["height"]), abs=0.3)
    assert float(high.attrib["y"]) >= svg.TOP


def test_faint_lines_have_neither_legend_nor_tooltips() -> None:
    drawing = render(
        chart(Series("bold", POINTS, 0), Series("raw", POINTS, 0, "faint"), Series("dots", POINTS, 1, "dots"))
    )
    assert "raw" not in drawing
    assert len(re.findall('class="hit"', drawing)) == len(POINTS)
    assert len(re.findall('class="dot"', drawing)) == len(POINTS)


def test_marks_are_drawn_with_their_words_where_they_lie_in_the_plot() -> None:
    drawn = render(chart(Series("a", POINTS, 0), marks=((5.0, "x < y"), (11.0, "outside"))))
    assert drawn.count('class="mark"') == 1 and "x &lt; y" in drawn and "outside" not in drawn
    ElementTree.fromstring(drawn)


def test_a_chart_without_points_says_so() -> None:
    assert ">no data</text>" in render(chart(Series("empty", (), 0)))
