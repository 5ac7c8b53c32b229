"""How the ranks of one island talk: a group of our own, never the trainer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class RankGroup(Protocol):
    """The ranks of one island, over a CPU group of our own (never the trainer's). All calls are collective."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def broadcast(self, payload: bytes | None) -> bytes:
        """Rank 0's payload, on every rank."""
        ...

    def gather(self, payload: bytes) -> Sequence[bytes]:
        """Every rank's payload in rank order on rank 0; an empty sequence elsewhere."""
        ...

    def all_true(self, votes: Sequence[bool]) -> list[bool]:
        """For each vote, whether every rank said yes. All ranks pass the same number of votes."""
        ...

    def sums(self, numbers: Sequence[int]) -> list[int]:
        """The sum of each number over all ranks, on every rank. All ranks pass equally many."""
        ...

    def close(self) -> None:
        """Give the group up. Idempotent, not collective."""
        ...
