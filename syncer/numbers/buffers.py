"""Buffers that are used again, so that a message, a push or a commit costs no allocation once the run is warm.

Memory that is touched for the first time is an order slower than a copy (measured: 1.2 ms for the first write of a
MiB, 0.05 ms afterwards), so this matters more than it looks.

Knows sizes and nothing of what is in a buffer. A buffer is lent to one holder at a time; one that is never given back
is simply collected.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque

import numpy as np
import zmq
from numpy.typing import NDArray

from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS
from syncer.numbers.fragment_stream import empty_values

IDLE_BUFFERS_MAX = 8
"""Idle buffers kept in all: the uploads and the new values of two rounds of two islands. More would
only hold memory."""

SLACK = 1.5
"""A buffer may serve values smaller than itself by this factor: fragments are balanced, hence of nearly one size."""


class ValueBuffers:
    """Float32 buffers for uploads, values and momentum. Any thread may take one.

    A buffer comes back by itself when nobody holds it or a view of it any more, be it a merge, a pinned value or a
    message that ZeroMQ has not sent yet.
    """

    def __init__(self, idle_max: int = IDLE_BUFFERS_MAX) -> None:
        self._idle_max = idle_max
        self._idle: list[NDArray[np.float32]] = []
        # The last holder may let go in any thread, also in one that holds the lock: only `take` locks.
        self._returned: deque[NDArray[np.float32]] = deque()
        self._lock = threading.Lock()

    def take(self, elements: int) -> NDArray[np.float32]:
        """A buffer of `elements` (at least 1) with anything in it."""
        storage = self._fitting(elements)
        if storage is None:
            storage = empty_values(elements)
        # numpy keeps an array over a foreign buffer alive for as long as any view of it: its end is the end of all.
        lent: NDArray[np.float32] = np.frombuffer(storage.data, np.float32, elements)
        weakref.finalize(lent, self._give, storage).atexit = False
        return lent

    @property
    def idle_bytes(self) -> int:
        """Bytes held for later."""
        return sum(storage.nbytes for storage in [*self._idle, *self._returned])

    def _fitting(self, elements: int) -> NDArray[np.float32] | None:
        with self._lock:
            while self._returned:
                self._idle.append(self._returned.popleft())
            fitting = [i for i, each in enumerate(self._idle) if elements <= each.size <= elements * SLACK]
            if fitting:
                return self._idle.pop(min(fitting, key=lambda i: self._idle[i].size))
            if len(self._idle) >= self._idle_max:
                del self._idle[0]  # It fits nobody that asks now.
            return None

    def _give(self, storage: NDArray[np.float32]) -> None:
        if len(self._idle) + len(self._returned) < self._idle_max:
            self._returned.append(storage)


class PieceBuffers:
    """Chunk buffers for outgoing pieces. One is free again when ZeroMQ has sent what was in it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: list[NDArray[np.float32]] = []
        self._sending: list[tuple[NDArray[np.float32], zmq.MessageTracker]] = []

    def take(self) -> NDArray[np.float32] | None:
        """A buffer of CHUNK_ELEMENTS; None while all of them are on their way."""
        if not self._idle:
            self._collect()
        if self._idle:
            return self._idle.pop()
        return None if len(self._sending) >= self._most else empty_values(CHUNK_ELEMENTS)

    def give(self, buffer: NDArray[np.float32]) -> None:
        """It was taken and not sent."""
        self._idle.append(buffer)

    def sending(self, buffer: NDArray[np.float32], tracker: zmq.MessageTracker) -> None:
        """The buffer is ZeroMQ's until the tracker is done."""
        self._sending.append((buffer, tracker))

    def _collect(self) -> None:
        sending, self._sending = self._sending, []
        for buffer, tracker in sending:
            if tracker.done:
                self._idle.append(buffer)
            else:
                self._sending.append((buffer, tracker))
