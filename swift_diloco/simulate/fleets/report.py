"""How forecasts are told: a table for a terminal, and JSON. It knows nothing of how the numbers came about."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from swift_diloco.simulate.fleets.fleet import Fleet
from swift_diloco.simulate.fleets.forecast import Forecast
from swift_diloco.simulate.fleets.paper import PaperRow

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
        f"\n{fleet.islands} islands: {found.pushed_bytes / 1e9:,.1f} GB pushed and "
        f"{found.fetched_bytes / 1e9:,.1f} GB fetched in {found.hours:g} simulated hours"
        for fleet, found in planned
        if fleet.islands > 1
    )
    return f"{aligned(HEAD, [cells_of(*each) for each in planned])}\n{traffic}\n\n{words}"


def json_of(planned: Sequence[Planned]) -> str:
    """One JSON object."""
    rows = [{"fleet": msgspec.to_builtins(fleet), **msgspec.to_builtins(found)} for fleet, found in planned]
    return msgspec.json.encode({"rows": rows}).decode()


PAPER_HEAD = ("chips", "islands", "mode", "goodput", "paper", "difference")


def paper_cells(row: PaperRow) -> tuple[str, ...]:
    """One row of the comparison."""
    difference = f"{100 * (row.goodput - row.paper_goodput):+.1f}"
    told = f"{100 * row.paper_goodput:.0f} %"
    return (f"{row.chips:,}", str(row.islands), row.mode, percent(row.goodput), told, difference)


def paper_text(rows: Sequence[PaperRow]) -> str:
    """The comparison for a terminal."""
    return aligned(PAPER_HEAD, [paper_cells(row) for row in rows])


def paper_json(rows: Sequence[PaperRow]) -> str:
    """The comparison as one JSON object."""
    return msgspec.json.encode({"rows": rows}).decode()
