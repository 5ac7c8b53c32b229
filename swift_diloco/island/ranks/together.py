"""Failing together: what goes wrong on one rank of an island must stop all of them, with the reason, and never
hang them.

Knows the ranks only. Use it around work that has no collective inside; inside collectives the ranks fail with
the group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from swift_diloco.core.errors import DilocoError, UserError, one_line
from swift_diloco.island.ranks.rank_group import RankGroup

T = TypeVar("T")


def all_or_none(group: RankGroup, work: Callable[[], T]) -> T:
    """The result of `work`, if it succeeded on every rank; else an error on every rank, in the words of the
    first that failed.

    A user's mistake stays one (`UserError`). A rank that failed itself raises its own error if it is not one of ours,
    so that its traceback is kept. Collective.
    """
    error: Exception | None = None
    try:
        result = work()
    except Exception as caught:
        error = caught
    (all_succeeded,) = group.all_true([error is None])
    if all_succeeded:
        return result
    first = _first_failure(group, error)
    if error is not None and not isinstance(error, DilocoError):
        raise error
    assert first is not None, "a rank that failed reports it"
    rank, user_mistake, text = first
    kind = UserError if user_mistake else DilocoError
    raise kind(text if user_mistake else f"rank {rank}: {text}") from error


def from_rank_0(group: RankGroup, make: Callable[[], bytes]) -> bytes:
    """What `make` gives on rank 0, on every rank; its error is everybody's. Collective."""
    made = all_or_none(group, make if group.rank == 0 else lambda: None)
    return group.broadcast(made)


def _first_failure(group: RankGroup, error: Exception | None) -> tuple[int, bool, str] | None:
    text = "" if error is None else (one_line(error) or type(error).__name__)
    reports = group.gather(msgspec.msgpack.encode((isinstance(error, UserError), text)))
    failures = [(rank, *msgspec.msgpack.decode(report, type=tuple[bool, str])) for rank, report in enumerate(reports)]
    first = next((failure for failure in failures if failure[2]), None)
    answer = group.broadcast(msgspec.msgpack.encode(first) if group.rank == 0 else None)
    return msgspec.msgpack.decode(answer, type=tuple[int, bool, str] | None)
