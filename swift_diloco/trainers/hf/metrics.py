"""Numbers of the island in the trainer's own log: console, logging.jsonl, TensorBoard, wandb, swanlab.

Writers are called before user callbacks, and each takes the numbers as they are then, so the trainer's `log` method is
wrapped instead (of the one trainer object): what it is given reaches all of them. Knows no writer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from swift_diloco.island.ranks.rank_group import RankGroup

PREFIX = "diloco/"
SUMMED = ("pushed_bytes", "fetched_bytes")
"""Counted by each rank, told for the island."""


def report_to(trainer: Any, metrics: Callable[[], Mapping[str, float]], group: RankGroup) -> None:
    """Add the island's numbers to what `trainer` logs of a training step. All ranks log at the same steps."""
    original = trainer.log

    def log(logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
        if "loss" in logs:
            logs.update(island_numbers(metrics(), group))
        return original(logs, *args, **kwargs)

    trainer.log = log


def island_numbers(metrics: Mapping[str, float], group: RankGroup) -> dict[str, float]:
    """The island's numbers under `diloco/`. Collective."""
    totals = group.sums([int(metrics[name]) for name in SUMMED])
    numbers = {**metrics, **dict(zip(SUMMED, map(float, totals), strict=True))}
    return {PREFIX + name: value for name, value in numbers.items()}
