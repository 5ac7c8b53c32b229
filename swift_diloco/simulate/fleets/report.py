"""How forecasts are told: a table for a terminal, JSON, and one HTML page that needs nothing else.

It lays out numbers and knows nothing of how they came about. Charts are those of `quickstart.svg`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import msgspec

from swift_diloco.charts.style import STYLE
from swift_diloco.charts.svg import Chart, Series, binary_bytes, render
from swift_diloco.simulate.fleets.fleet import Fleet
from swift_diloco.simulate.fleets.forecast import Forecast
from swift_diloco.simulate.fleets.paper import Row

Planned = tuple[Fleet, Forecast]

HEAD = (
    "islands", "chips", "mode", "goodput", "utilisation", "stopped", "syncer cost", "merged", "staleness",
    "outer steps", "Gbit/s per island", "of its link",
)  # fmt: skip

WORDS = {
    "goodput": "chip time in local steps that were kept, of the chip time of the whole fleet, in the long run",
    "utilisation": "the same with steps that were lost",
    "stopped": "time in which islands stood still for an interruption",
    "syncer cost": "share of the goodput lost by waiting for the syncer or for other islands",
    "merged": "local steps whose delta became part of the global values, mean over fragments",
    "staleness": "local steps in a merged delta, mean and largest",
    "outer steps": "per hour",
    "Gbit/s per island": "mean traffic in the busier direction",
}
"""What each column means."""


def cells_of(fleet: Fleet, found: Forecast) -> tuple[str, ...]:
    """One row of the table."""
    together = fleet.islands > 1
    return (
        str(fleet.islands),
        f"{fleet.chips_in_all:,}",
        fleet.mode.value,
        percent(found.goodput),
        percent(found.utilisation),
        percent(found.stopped),
        percent(found.syncer_cost) if together else "-",
        percent(found.merged) if together else "-",
        f"{found.staleness_steps:.1f}, {found.staleness_steps_max}" if together else "-",
        f"{found.outer_steps / found.hours:,.0f}" if together else "-",
        f"{found.link_gbit_s:.3g}" if together else "-",
        percent(found.link_share) if together else "-",
    )


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.1f} %"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def text_of(planned: Sequence[Planned]) -> str:
    """The table and what its columns mean."""
    words = "\n".join(f"  {name}: {meaning}" for name, meaning in WORDS.items())
    traffic = "".join(
        f"\n{fleet.islands} islands: {binary_bytes(found.pushed_bytes)} pushed and "
        f"{binary_bytes(found.fetched_bytes)} fetched in {found.hours:g} simulated hours"
        for fleet, found in planned
        if fleet.islands > 1
    )
    return f"{aligned(HEAD, [cells_of(*each) for each in planned])}\n{traffic}\n\n{words}"


def json_of(planned: Sequence[Planned]) -> str:
    """One JSON object."""
    rows = [{"fleet": msgspec.to_builtins(fleet), **msgspec.to_builtins(found)} for fleet, found in planned]
    for row in rows:
        del row["points"]
    return msgspec.json.encode({"rows": rows}).decode()


PAPER_HEAD = ("chips", "islands", "mode", "goodput", "paper", "difference")


def paper_cells(row: Row) -> tuple[str, ...]:
    """One row of the comparison."""
    difference = f"{100 * (row.goodput - row.paper_goodput):+.1f}"
    told = f"{100 * row.paper_goodput:.0f} %"
    return (f"{row.chips:,}", str(row.islands), row.mode, percent(row.goodput), told, difference)


def paper_text(rows: Sequence[Row]) -> str:
    """The comparison for a terminal."""
    return aligned(PAPER_HEAD, [paper_cells(row) for row in rows])


def paper_json(rows: Sequence[Row]) -> str:
    """The comparison as one JSON object."""
    return msgspec.json.encode({"rows": rows}).decode()


# -- HTML -------------------------------------------------------------------------------------------------------------


def goodput_chart(planned: Sequence[Planned]) -> Chart:
    """Goodput over the number of islands; over time when there is one fleet."""
    if len(planned) == 1:
        fleet, found = planned[0]
        points = tuple((hours, 100 * share) for hours, share in found.points)
        series = Series(f"{fleet.islands} islands", points, 0)
        return Chart("plot-goodput", "Goodput so far, in the simulated hours", "hours", "per cent", (series,))
    points = tuple((float(fleet.islands), 100 * found.goodput) for fleet, found in planned)
    used = tuple((float(fleet.islands), 100 * found.utilisation) for fleet, found in planned)
    series_of = (Series("goodput", points, 0), Series("utilisation", used, 1))
    return Chart("plot-goodput", "Goodput in the long run", "islands", "per cent", series_of)


def staleness_chart(planned: Sequence[Planned]) -> Chart:
    """How old merged deltas are."""
    points = tuple((float(f.islands), found.staleness_steps) for f, found in planned if f.islands > 1)
    series = (Series("mean", points, 0, "dots"),)
    return Chart("plot-staleness", "Staleness: local steps in a merged delta", "islands", "local steps", series)


def bytes_chart(planned: Sequence[Planned]) -> Chart:
    """Traffic of an island."""
    points = tuple(
        (float(fleet.islands), found.pushed_bytes / fleet.islands / found.hours)
        for fleet, found in planned
        if fleet.islands > 1
    )
    fetched = tuple(
        (float(fleet.islands), found.fetched_bytes / fleet.islands / found.hours)
        for fleet, found in planned
        if fleet.islands > 1
    )
    series = (Series("pushed", points, 0, "bars"), Series("fetched", fetched, 1, "bars"))
    return Chart("plot-bytes", "Bytes per island and hour", "islands", "bytes", series, y_unit="bytes")


def paper_chart(rows: Sequence[Row]) -> Chart:
    """The comparison as a plot: decoupled training, by the number of islands."""
    series = []
    for colour, chips in enumerate(sorted({row.chips for row in rows})):
        ours = [row for row in rows if row.chips == chips and row.mode != "plain"]
        ours.sort(key=lambda row: row.islands)
        simulated = tuple((float(row.islands), 100 * row.goodput) for row in ours)
        told = tuple((float(row.islands), 100 * row.paper_goodput) for row in ours)
        name = f"{chips / 1e6:.1f}M chips"
        series += [Series(name, simulated, colour), Series(f"{name}, paper", told, colour, "dots")]
    return Chart("plot-paper", "Goodput beside the paper's figures", "islands", "per cent", tuple(series))


def page_of(title: str, text: str, charts: Sequence[Chart], table: str) -> str:
    """One self-contained page."""
    plots = "".join(f'<div class="card"><h2>{html.escape(each.title)}</h2>{render(each)}</div>' for each in charts)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f'<h1>{html.escape(title)}</h1><p>{html.escape(text)}</p><div class="charts">{plots}</div>'
        f'<div class="card"><div class="scroll">{table}</div></div></main></body></html>\n'
    )


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as HTML."""
    names = "".join(f'<th title="{html.escape(WORDS.get(name, ""))}">{html.escape(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{names}</tr>{body}</table>"
