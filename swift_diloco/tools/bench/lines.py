"""One measured figure as a line of JSON, beside the ceiling that was measured in the same run.

Invariants: every line has the same keys in the same order; `ratio` is always value / ceiling, and whether a figure
that is smaller or larger is the better one is told by `better`.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

Detail: TypeAlias = float | int | str | list[float]
"""What else a line may tell."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure."""

    name: str
    value: float
    unit: str
    ceiling: float
    """What was measured or computed in the same run to compare with, in the same unit."""
    ratio: float
    target: float
    """What `ratio` is aimed at."""
    better: Literal["higher", "lower"]
    met: bool
    load: float
    """Load average of the last minute when the figure was taken: on a busy machine, look at the ratio."""
    details: dict[str, Detail] = {}


def line(
    name: str,
    unit: str,
    figures: tuple[float, float, float],
    better: Literal["higher", "lower"] = "higher",
    **details: Detail,
) -> Figure:
    """The line of `figures` = (value, ceiling, target of their ratio)."""
    value, ceiling, target = figures
    ratio = value / ceiling if ceiling else float("inf")
    return Figure(
        name=name,
        value=short(value),
        unit=unit,
        ceiling=short(ceiling),
        ratio=short(ratio),
        target=target,
        better=better,
        met=ratio >= target if better == "higher" else ratio <= target,
        load=round(os.getloadavg()[0], 1),
        details=details,
    )


def say(figure: Figure) -> None:
    """Print one line."""
    print(msgspec.json.encode(figure).decode(), flush=True)


def short(value: float) -> float:
    """Four significant digits: no measurement here is better than that."""
    return float(f"{value:.4g}")


def median(values: Sequence[float]) -> float:
    """The median; 0 of nothing, which no target accepts as a throughput."""
    return statistics.median(values) if values else 0.0
