"""The island's numbers reach whatever the trainer logs of a training step, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from swift_diloco.trainers.hf.metrics import report_to
from tests.trainers.hf.test_step_work import Ranks

METRICS = {"outer_step": 3.0, "blocked_s": 0.5, "pushed_bytes": 10.0, "fetched_bytes": 20.0}


def test_numbers_are_added_to_training_logs_with_the_bytes_of_all_ranks() -> None:
    seen: list[Any] = []
    trainer = SimpleNamespace(log=lambda logs, *args: seen.append((dict(logs), args)))
    report_to(trainer, lambda: METRICS, Ranks((5, 7)))
    trainer.log({"loss": 1.5}, 12.0)
    trainer.log({"eval_loss": 1.5})
    assert seen == [
        (
            {
                "loss": 1.5,
                "diloco/outer_step": 3.0,
                "diloco/blocked_s": 0.5,
                "diloco/pushed_bytes": 15.0,
                "diloco/fetched_bytes": 27.0,
            },
            (12.0,),
        ),
        ({"eval_loss": 1.5}, ()),
    ]
