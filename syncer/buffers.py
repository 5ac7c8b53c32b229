"""Buffers that are lent and given back, so that a message or a push costs no allocation once the run is warm.

Knows sizes and nothing of what is in a buffer. A buffer is lent to one holder at a time; one that is never given back
is simply collected.
"""

from __future__ import annotations

import numpy as np
import zmq
from numpy.typing import NDArray

from swift_diloco.core.codec import CHUNK_ELEMENTS
from swift_diloco.core.pieces import empty_values

IDLE_BUFFERS_MAX = 4
"""Idle buffers kept per size: what the next rounds of a fragment need at once. More would only hold memory."""


class ValueBuffers:
    """Float32 buffers by number of elements, for uploads."""

    def __init__(self) -> None:
        self._idle: dict[int, list[NDArray[np.float32]]] = {}

    def take(self, elements: int) -> NDArray[np.float32]:
        """A buffer with anything in it."""
        idle = self._idle.get(elements)
        return idle.pop() if idle else empty_values(elements)

    def give(self, buffer: NDArray[np.float32]) -> None:
        """Nobody reads or writes the buffer any more."""
        idle = self._idle.setdefault(buffer.size, [])
        if len(idle) < IDLE_BUFFERS_MAX:
            idle.append(buffer)

    @property
    def idle_bytes(self) -> int:
        """Bytes held for later."""
        return sum(size * 4 * len(idle) for size, idle in self._idle.items())


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
