"""Named points in time, many of them cheap to move: leases are pushed back by every heartbeat and rarely end.

Knows no clock. A deadline that moves later costs a dictionary write; the heap is put right when its top is looked at.

Invariants: `next()` is the earliest deadline that is set; `take_expired(now)` hands each one out once, earliest first.
"""

from __future__ import annotations

from heapq import heappop, heappush

Key = tuple[str, str]
"""What a deadline is of: its kind and the id of its owner."""


class Deadlines:
    """A lazy heap of deadlines by key."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._queued: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: Key, due: float) -> None:
        """Set or move a deadline."""
        self._due[key] = due
        queued = self._queued.get(key)
        if queued is None or due < queued:
            self._queued[key] = due
            heappush(self._heap, (due, key))

    def clear(self, key: Key) -> None:
        """Take a deadline away; nothing happens when it is not set."""
        self._due.pop(key, None)

    def next(self) -> float | None:
        """The earliest deadline."""
        while self._heap:
            due, key = self._heap[0]
            actual = self._due.get(key)
            if self._queued.get(key) == due and actual == due:
                return due
            heappop(self._heap)
            if self._queued.get(key) != due:
                continue
            if actual is None:
                del self._queued[key]
            else:
                self._queued[key] = actual
                heappush(self._heap, (actual, key))
        return None

    def take_expired(self, now: float) -> list[Key]:
        """Take away and return every deadline that is not after `now`."""
        keys: list[Key] = []
        while (due := self.next()) is not None and due <= now:
            _, key = heappop(self._heap)
            del self._due[key], self._queued[key]
            keys.append(key)
        return keys
