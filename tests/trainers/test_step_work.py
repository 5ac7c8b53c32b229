"""What all ranks agree a step did."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from swift_diloco.core.errors import InternalError
from swift_diloco.trainers.step_work import StepWork, agree_on_work
from tests.fakes.group import ThreadGroup


class Ranks(ThreadGroup):
    """Rank 0 of several, which adds what the other ranks say to what it says itself."""

    def __init__(self, others: Sequence[tuple[int, int]]) -> None:
        super().__init__(0, threading.Barrier(1 + len(others)), [])
        self.others = others
        self.asked: list[list[int]] = []

    def sums(self, numbers: Sequence[int]) -> list[int]:
        self.asked.append(list(numbers))
        return [sum(column) for column in zip(numbers, *self.others, strict=True)]


@pytest.mark.parametrize(
    ("others", "mine", "agreed"),
    [
        ([], (True, 7), StepWork(True, 7)),
        ([], (False, 7), StepWork(False, 0)),
        ([(30, 1), (0, 1)], (True, 12), StepWork(True, 42)),
        ([(30, 0)], (False, 12), StepWork(False, 0)),
    ],
)
def test_tokens_are_added_up_and_count_only_where_the_model_changed(
    others: list[tuple[int, int]], mine: tuple[bool, int], agreed: StepWork
) -> None:
    ranks = Ranks(others)
    assert agree_on_work(ranks, trained=mine[0], tokens=mine[1]) == agreed
    assert ranks.asked == [[mine[1], int(mine[0])]]


def test_step_that_only_some_ranks_took_is_our_own_bug() -> None:
    with pytest.raises(InternalError, match="took this step on 2 of 3 ranks; expected all or none"):
        agree_on_work(Ranks([(1, 1), (1, 0)]), trained=True, tokens=1)
