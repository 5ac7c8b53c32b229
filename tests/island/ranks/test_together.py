"""What fails on one rank fails on all of them, in the words of the first that failed, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from swift_diloco.core.errors import DilocoError, PeerError, UserError
from swift_diloco.island.ranks.rank_group import RankGroup
from swift_diloco.island.ranks.together import all_or_none, from_rank_0
from tests.fakes.group import ThreadGroup


def on_ranks(size: int, work: Callable[[RankGroup], object]) -> list[object]:
    """What `work` returns or raises on each rank."""

    def one(group: ThreadGroup) -> object:
        try:
            return work(group)
        except Exception as error:
            return type(error), str(error)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, ThreadGroup.make(size)))


def failing(errors: dict[int, Exception]) -> Callable[[RankGroup], object]:
    def work(group: RankGroup) -> int:
        if error := errors.get(group.rank):
            raise error
        return group.rank

    return lambda group: all_or_none(group, lambda: work(group))


def test_work_that_succeeds_everywhere_gives_each_rank_its_own_result() -> None:
    assert on_ranks(3, failing({})) == [0, 1, 2]


@pytest.mark.parametrize(
    ("errors", "seen"),
    [
        ({1: UserError("a flag is wrong")}, [(UserError, "a flag is wrong")] * 3),
        ({1: PeerError("gone"), 2: UserError("a flag is wrong")}, [(DilocoError, "rank 1: gone")] * 3),
        ({2: PeerError("two\n lines")}, [(DilocoError, "rank 2: two lines")] * 3),
        ({2: PeerError()}, [(DilocoError, "rank 2: PeerError")] * 3),
    ],
)
def test_the_first_failure_is_everybodys(errors: dict[int, Exception], seen: list[object]) -> None:
    assert on_ranks(3, failing(errors)) == seen


def test_a_bug_keeps_its_traceback_on_the_rank_that_has_it() -> None:
    assert on_ranks(2, failing({1: ValueError("a bug")})) == [(DilocoError, "rank 1: a bug"), (ValueError, "a bug")]


def test_what_rank_0_makes_is_everybodys_and_nobody_else_makes_it() -> None:
    made: list[int] = []

    def make(group: RankGroup) -> bytes:
        made.append(group.rank)
        return b"from %d" % group.rank

    assert on_ranks(3, lambda group: from_rank_0(group, lambda: make(group))) == [b"from 0"] * 3
    assert made == [0]


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (UserError("no address"), [(UserError, "no address")] * 2),
        (PeerError("no answer"), [(DilocoError, "rank 0: no answer")] * 2),
        (OSError("a disk"), [(OSError, "a disk"), (DilocoError, "rank 0: a disk")]),
    ],
)
def test_what_rank_0_cannot_make_fails_on_all(error: Exception, seen: list[object]) -> None:
    def make() -> bytes:
        raise error

    assert on_ranks(2, lambda group: from_rank_0(group, make)) == seen
