"""Small charts as inline SVG: lines, steps, dots and stacked bars, with axes, a legend and tooltips.

It knows numbers and labels, not what they mean. Colours are CSS variables of the page (`--series-0` …, `--ink`,
`--muted`, `--grid`), so one drawing serves light and dark. Invariant: what is drawn lies inside the plot area, for the
axes are made from the data.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 60, 16, 40, 44
"""Pixels of the drawing, and of the margins that hold labels and legend."""

TICKS = 5
"""About how many ticks an axis has."""

HIT_POINTS_MAX = 80
"""Tooltip targets per line: more would overlap each other."""

LEGEND_LETTER_PX = 6.6
"""Mean width of a letter of the legend, at 12 px."""

MARK_LETTER_PX = 12.0
"""Room that the words along a mark take beside it."""

PALETTE_SIZE = 8
"""Series colours that the page defines; further series begin again."""

Kind = Literal["line", "faint", "steps", "dots", "bars"]


def plain(value: float) -> str:
    """A number for a tick: at most three digits after the point, none that say nothing."""
    return f"{value:,.3f}".rstrip("0").rstrip(".") if value % 1 else f"{value:,.0f}"


def binary_bytes(value: float) -> str:
    """Bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{plain(round(value, 1))} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


@dataclass(frozen=True)
class Series:
    """Points of one name and one colour. `faint` lines are background: no legend entry, no tooltips."""

    name: str
    points: tuple[tuple[float, float], ...]
    colour: int
    kind: Kind = "line"
    notes: tuple[str, ...] = ()
    """Tooltip per point; made from the numbers where there is none."""


@dataclass(frozen=True)
class Chart:
    """A titled set of series on common axes."""

    key: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    y_unit: Literal["number", "bytes"] = "number"
    y_from_zero: bool = True
    marks: tuple[tuple[float, str], ...] = ()
    """Moments to point at: x, and what happened then."""

    def y_text(self, y: float) -> str:
        """A value of the y axis in words."""
        return binary_bytes(y) if self.y_unit == "bytes" else plain(y)


def nice_ticks(low: float, high: float, about: int = TICKS) -> list[float]:
    """Round numbers that cover [low, high]: steps of 1, 2 or 5 times a power of ten."""
    span = high - low if high > low else max(abs(high), 1.0)
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil((low + span) / step - 1e-9)
    return [round(float(i * step), 12) for i in range(first, last + 1)]


@dataclass(frozen=True)
class _Axis:
    """What is shown of one dimension, and where it has ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """Where a value lies between the ends: 0 to 1."""
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class _Axes:
    x: _Axis
    y: _Axis

    def px(self, x: float) -> float:
        return LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT)

    def py(self, y: float) -> float:
        return HEIGHT - BOTTOM - self.y.share(y) * (HEIGHT - TOP - BOTTOM)


def _stacked(chart: Chart) -> dict[float, float]:
    """Height of the whole stack at each x."""
    heights: dict[float, float] = {}
    for series in chart.series:
        if series.kind == "bars":
            for x, y in series.points:
                heights[x] = heights.get(x, 0.0) + y
    return heights


def _x_axis(xs: list[float], bars: bool) -> _Axis:
    """It ends where the data ends; bars get room for their width and ticks at whole numbers only."""
    margin = 0.6 if bars or min(xs) == max(xs) else 0.0
    low, high = min(xs) - margin, max(xs) + margin
    ticks = [x for x in nice_ticks(min(xs), max(xs)) if low <= x <= high]
    return _Axis(low, high, tuple(x for x in ticks if x.is_integer() or not bars))


def _y_axis(low: float, high: float, y_unit: str) -> _Axis:
    """It ends at ticks, so that the topmost value has a line above it."""
    unit = 1024.0 ** math.floor(math.log(high, 1024)) if y_unit == "bytes" and high >= 1 else 1.0
    ticks = [y * unit for y in nice_ticks(low / unit, high / unit)]
    return _Axis(ticks[0], ticks[-1], tuple(ticks))


def _axes(chart: Chart) -> _Axes | None:
    stacked = _stacked(chart)
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series if series.kind != "bars" for _, y in series.points] + list(stacked.values())
    if not xs:
        return None
    low = min(0.0, *ys) if chart.y_from_zero or stacked else min(ys)
    return _Axes(_x_axis(xs, bool(stacked)), _y_axis(low, max(ys), chart.y_unit))


def _text(x: float, y: float, words: str, css: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{html.escape(words)}</text>'


def _frame(chart: Chart, axes: _Axes) -> list[str]:
    parts = []
    for y in axes.y.ticks:
        py = axes.py(y)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py:.1f}" y2="{py:.1f}" class="grid"/>')
        parts.append(_text(LEFT - 8, py + 4, chart.y_text(y), "tick", "end"))
    parts += [_text(axes.px(x), HEIGHT - BOTTOM + 18, plain(x), "tick") for x in axes.x.ticks]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, chart.x_label, "label"))
    parts.append(_text(LEFT - 8, TOP - 14, chart.y_label, "label", "start"))
    return parts


def _legend(chart: Chart) -> list[str]:
    named = [series for series in chart.series if series.kind != "faint"]
    if len(named) < 2:
        return []
    parts, right = [], float(WIDTH - RIGHT)
    for series in reversed(named):
        right -= len(series.name) * LEGEND_LETTER_PX
        parts.append(_text(right, TOP - 14, series.name, "legend", "start"))
        parts.append(f'<rect x="{right - 14:.1f}" y="{TOP - 23}" width="10" height="10" rx="2" {_fill(series)}/>')
        right -= 26
    return parts


def _fill(series: Series) -> str:
    return f'style="fill:var(--series-{series.colour % PALETTE_SIZE})"'


def _note(chart: Chart, series: Series, index: int) -> str:
    if series.notes:
        return html.escape(series.notes[index])
    x, y = series.points[index]
    return html.escape(f"{series.name} · {chart.x_label} {plain(round(x, 2))} · {chart.y_text(round(y, 3))}")


def _line(chart: Chart, series: Series, axes: _Axes) -> list[str]:
    corners = [(axes.px(x), axes.py(y)) for x, y in series.points]
    path, before = [], corners[0]
    for x, y in corners:
        if series.kind == "steps":
            path.append(f"{x:.1f},{before[1]:.1f}")
        path.append(f"{x:.1f},{y:.1f}")
        before = (x, y)
    css = "faint" if series.kind == "faint" else "line"
    stroke = f"stroke:var(--series-{series.colour % PALETTE_SIZE})"
    parts = [f'<polyline points="{" ".join(path)}" class="{css}" style="{stroke}"/>']
    if series.kind != "faint":
        stride = max(1, math.ceil(len(corners) / HIT_POINTS_MAX))
        for index in [*range(0, len(corners) - 1, stride), len(corners) - 1]:
            x, y = corners[index]
            parts.append(_circle(x, y, 5, 'class="hit"', _note(chart, series, index)))
    return parts


def _circle(x: float, y: float, radius: float, how: str, note: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" {how}><title>{note}</title></circle>'


def _dots(chart: Chart, series: Series, axes: _Axes) -> list[str]:
    return [
        _circle(axes.px(x), axes.py(y), 4, f'class="dot" {_fill(series)}', _note(chart, series, index))
        for index, (x, y) in enumerate(series.points)
    ]


def _bars(chart: Chart, series: Series, axes: _Axes, base: dict[float, float]) -> list[str]:
    """Bars on top of what lies in `base`, which grows."""
    width = max(2.0, (axes.px(1) - axes.px(0)) * 0.72)
    parts = []
    for index, (x, y) in enumerate(series.points):
        low = base.get(x, 0.0)
        base[x] = low + y
        top, bottom = axes.py(low + y), axes.py(low)
        parts.append(
            f'<rect x="{axes.px(x) - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{max(0.0, bottom - top):.1f}" class="bar" {_fill(series)}>'
            f"<title>{_note(chart, series, index)}</title></rect>"
        )
    return parts


def _marks(chart: Chart, axes: _Axes) -> list[str]:
    """A dashed line per moment, with what happened written along it; moments outside of the plot are left out."""
    parts, before = [], -math.inf
    for x, words in chart.marks:
        if not axes.x.low <= x <= axes.x.high:
            continue
        px = axes.px(x)
        beside = px + MARK_LETTER_PX if px - before < MARK_LETTER_PX else px - 4  # two at one place: one on each side
        before = px
        parts.append(f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="mark"/>')
        turned = f'transform="rotate(-90 {beside:.1f} {HEIGHT - BOTTOM - 6})"'
        place = f'x="{beside:.1f}" y="{HEIGHT - BOTTOM - 6}" {turned} class="marked"'
        parts.append(f"<text {place}>{html.escape(words)}</text>")
    return parts


def render(chart: Chart) -> str:
    """The chart as one `<svg>` element; a chart without points says so."""
    head = (
        f'<svg id="{chart.key}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(chart.title)}">'
        f"<title>{html.escape(chart.title)}</title>"
    )
    axes = _axes(chart)
    if axes is None:
        return head + _text(WIDTH / 2, HEIGHT / 2, "no data", "label") + "</svg>"
    parts = _frame(chart, axes)
    base: dict[float, float] = {}
    for series in chart.series:
        if not series.points:
            continue
        if series.kind == "bars":
            parts += _bars(chart, series, axes, base)
        elif series.kind == "dots":
            parts += _dots(chart, series, axes)
        else:
            parts += _line(chart, series, axes)
    return head + "".join(parts + _marks(chart, axes) + _legend(chart)) + "</svg>"


def smoothed(points: Sequence[tuple[float, float]], window: int) -> tuple[tuple[float, float], ...]:
    """Means of y over the last `window` points (fewer at the start)."""
    result = []
    for index, (x, _) in enumerate(points):
        part = [y for _, y in points[max(0, index - window + 1) : index + 1]]
        result.append((x, sum(part) / len(part)))
    return tuple(result)
