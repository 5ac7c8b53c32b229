"""Supervised tokens are those of updates that were taken, over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swift_diloco.core.errors import InternalError, UserError
from swift_diloco.island.ranks.torch_group import LoneRank
from swift_diloco.trainers.hf.step_work import WorkCounter
from swift_diloco.trainers.step_work import StepWork


class Ranks(LoneRank):
    """Two ranks; the other one did `other`."""

    size = 2

    def __init__(self, other: Sequence[int] = (100, 1)) -> None:
        self.other = other

    def sums(self, numbers: Sequence[int]) -> list[int]:
        return [mine + theirs for mine, theirs in zip(numbers, self.other, strict=True)]


PACKED = {"labels": torch.tensor([[-100, 5, 6, -100, -100, 7]])}
PADDED = {"labels": torch.tensor([[3, 4, -100], [-100, 8, 9]])}


def counter_after(batches: list[dict[str, Any]], other: Sequence[int], *, gradients: bool = True) -> WorkCounter:
    trainer = SimpleNamespace(get_batch_samples=lambda iterator, number, device: (batches, 17))
    counter = WorkCounter(Ranks(other))
    counter.attach(trainer)
    assert trainer.get_batch_samples(None, 2, None) == (batches, 17)
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1) if gradients else None
    counter.optimizer_is_due([parameter])
    return counter


def test_labels_after_the_shift_are_counted_over_micro_batches_and_ranks() -> None:
    counter = counter_after([PACKED, PADDED], (100, 1))
    # The first label of each row is never predicted.
    assert counter.take(skipped=False) == StepWork(trained=True, tokens=3 + 3 + 100)
    counter._group = Ranks((0, 0))
    assert counter.take(skipped=True) == StepWork(trained=False, tokens=0), "a step is counted once"


def test_an_update_that_was_skipped_counts_nothing() -> None:
    assert counter_after([PADDED], (0, 0)).take(skipped=True) == StepWork(trained=False, tokens=0)


def test_an_update_without_gradients_counts_nothing() -> None:
    """ms-swift drops all gradients when their norm is NaN, and the step number advances."""
    counter = counter_after([PADDED], (0, 0), gradients=False)
    assert counter.take(skipped=False) == StepWork(trained=False, tokens=0)


def test_ranks_that_disagree_are_an_error_of_ours() -> None:
    with pytest.raises(InternalError, match="took this step on 1 of 2 ranks"):
        counter_after([PADDED], (0, 0)).take(skipped=False)


def test_batches_without_labels_are_refused() -> None:
    with pytest.raises(UserError, match=r"a batch has \['input_ids'\] and no labels"):
        counter_after([{"input_ids": torch.zeros(1)}], (0, 1)).take(skipped=False)
