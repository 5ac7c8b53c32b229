"""The trainer's own log (`logging.jsonl` of ms-swift) as points of a curve.

Invariant: points are in the order of the steps; rows without a step or a loss (the closing summary) are passed over.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from swift_diloco.core.files.json_lines import JsonLines, Row

LOG_NAME = "logging.jsonl"

SMOOTH_STEPS = 10
"""First and final losses are means over this many steps: one batch of short answers is noisy."""


@dataclass(frozen=True)
class Point:
    """One logged training step."""

    step: int
    loss: float


def parse_points(rows: Iterable[Row]) -> list[Point]:
    """The training steps among the rows of a log."""
    points = []
    for row in rows:
        # `megatron sft` writes the one name, `swift sft` the other: "12/240".
        step, _, _total = str(row.get("iteration") or row.get("global_step/max_steps", "")).partition("/")
        if step.isdigit() and isinstance(row.get("loss"), int | float):
            points.append(Point(int(step), float(row["loss"])))
    return points


def read_points(output_dir: Path) -> list[Point]:
    """The curve of a run that is over."""
    return parse_points(JsonLines(output_dir / LOG_NAME).new())


def joined(first_life: list[Point], points: list[Point]) -> list[Point]:
    """The curve of a job that was killed and started again: a step that was made twice shows as it was made last."""
    by_step = {point.step: point for point in (*first_life, *points)}
    return [by_step[step] for step in sorted(by_step)]


def first_loss(points: list[Point]) -> float:
    """The loss before training: that of the very first step."""
    return points[0].loss


def final_loss(points: list[Point]) -> float:
    """The loss at the end: the mean over the last steps."""
    last = [point.loss for point in points[-SMOOTH_STEPS:]]
    return sum(last) / len(last)
