"""An island of one rank that notes how long its heartbeats wait for their answers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from swift_diloco.core.formats.frames import Buffer, decode_header
from swift_diloco.core.formats.messages import Heartbeat, HeartbeatReply, IslandMessage
from swift_diloco.tools.bench.rank import NOTES_MAX, DialTarget, Notes, Rank, TimedControl


class BeatingControl(TimedControl):
    """Notes how long answers to heartbeats take."""

    def __init__(self, dial: DialTarget, notes: Notes) -> None:
        super().__init__(dial, notes)
        self.heartbeat_s: deque[float] = deque(maxlen=NOTES_MAX)
        self._beats: deque[float] = deque(maxlen=NOTES_MAX)

    @property
    def longest_wait_s(self) -> float:
        """The longest wait for an answer since the waits were cleared, one that still lasts included."""
        try:
            unanswered_s = time.perf_counter() - self._beats[0]
        except IndexError:
            unanswered_s = 0.0
        return max([*self.heartbeat_s, unanswered_s])

    def _send(self, message: IslandMessage) -> bool:
        if isinstance(message, Heartbeat):
            self._beats.append(time.perf_counter())
        return super()._send(message)

    def _on_frames(self, parts: Sequence[Buffer]) -> None:
        if self._beats and isinstance(decode_header(parts[1]), HeartbeatReply):
            self.heartbeat_s.append(time.perf_counter() - self._beats.popleft())
        super()._on_frames(parts)

    def _on_lost(self) -> None:
        self._beats.clear()
        super()._on_lost()


class BeatingRank(Rank):
    """One such island."""

    control: BeatingControl

    def control_to(self, dial: DialTarget) -> BeatingControl:
        return BeatingControl(dial, self.notes)
