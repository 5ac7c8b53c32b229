"""Ranks of one island as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

COLLECTIVE_TIMEOUT_S = 60.0
"""A rank that waits longer for its peers raises BrokenBarrierError: a hang in a test becomes a failure."""


class ThreadGroup:
    """`RankGroup` for threads. Make all of an island's groups with `ThreadGroup.make(n)`."""

    def __init__(self, rank: int, barrier: threading.Barrier, board: list[object]) -> None:
        self._rank = rank
        self._barrier = barrier
        self._board = board

    @classmethod
    def make(cls, size: int) -> list[ThreadGroup]:
        barrier = threading.Barrier(size, timeout=COLLECTIVE_TIMEOUT_S)
        board: list[object] = [None] * size
        return [cls(rank, barrier, board) for rank in range(size)]

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._barrier.parties

    def _exchange(self, mine: object) -> list[object]:
        if self.size == 1:
            return [mine]
        self._board[self._rank] = mine
        self._barrier.wait()
        everybody = list(self._board)
        self._barrier.wait()
        return everybody

    def broadcast(self, payload: bytes | None) -> bytes:
        first = self._exchange(payload)[0]
        assert isinstance(first, bytes)
        return first

    def gather(self, payload: bytes) -> Sequence[bytes]:
        everybody = self._exchange(payload)
        return [part for part in everybody if isinstance(part, bytes)] if self._rank == 0 else []

    def all_true(self, votes: Sequence[bool]) -> list[bool]:
        ballots = [ballot for ballot in self._exchange(list(votes)) if isinstance(ballot, list)]
        return [all(column) for column in zip(*ballots, strict=True)]

    def sums(self, numbers: Sequence[int]) -> list[int]:
        ballots = [ballot for ballot in self._exchange(list(numbers)) if isinstance(ballot, list)]
        return [sum(column) for column in zip(*ballots, strict=True)]

    def close(self) -> None:
        if self._barrier.n_waiting:
            self._barrier.abort()
