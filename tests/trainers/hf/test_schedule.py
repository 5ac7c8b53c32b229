"""A fresh schedule is brought to the resumed step; any other is left alone."""

from __future__ import annotations

import math

import pytest
import torch

from swift_diloco.trainers.hf.schedule import catch_up

pytestmark = pytest.mark.slow  # torch imports its compiler when the first optimizer is made


def schedule(steps: int = 100) -> torch.optim.lr_scheduler.LambdaLR:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 * (1 + math.cos(math.pi * i / steps)))


def test_a_fresh_schedule_gives_the_rate_of_the_uninterrupted_run() -> None:
    fresh, uninterrupted = schedule(), schedule()
    for _ in range(30):
        uninterrupted.optimizer.step()
        uninterrupted.step()
    assert catch_up(fresh, 30)
    assert fresh.get_last_lr() == uninterrupted.get_last_lr()
    assert fresh.optimizer.param_groups[0]["lr"] == pytest.approx(1 + math.cos(math.pi * 0.3))


def test_a_restored_schedule_and_a_cold_start_are_left_alone() -> None:
    restored = schedule()
    restored.optimizer.step()
    restored.step()
    before = restored.get_last_lr()
    assert not catch_up(restored, 30)
    assert restored.get_last_lr() == before
    assert not catch_up(schedule(), 0)


def test_a_schedule_that_follows_a_metric_is_left_alone() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    assert not catch_up(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), 30)
