"""The control link of rank 0: heartbeats, orders and every message that is not bulk data.

It decides nothing; what was heard waits in a bounded inbox until the island takes it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from swift_diloco.core.errors import PeerError
from swift_diloco.core.files.key_files import CurveKeys
from swift_diloco.core.formats import frames
from swift_diloco.core.formats.messages import Heartbeat, Hello, IslandMessage
from swift_diloco.island.links.dealer import QUEUE_MESSAGES_MAX, Dealer


class ControlLink(Dealer):
    """Rank 0's control link: keeps what was heard in order for the next boundary, and sends heartbeats.

    An item of `drain` is the header bytes of a message, or None where the link broke.
    """

    def __init__(self, address: str, *, heartbeat_s: float, stall_s: float, keys: CurveKeys | None = None) -> None:
        super().__init__(address, "control link", keys)
        self._heartbeat_s = heartbeat_s
        self._stall_s = stall_s
        self._inbox: deque[bytes | None] = deque()
        self._arrived = threading.Event()
        self._generation: tuple[str, str] | None = None
        self._unsent_hello: Hello | None = None
        self._step = 0
        self._progress_at = time.monotonic()
        self._beat_at = 0.0

    def send(self, message: IslandMessage) -> None:
        """Send a control message.

        Without a connection a Hello waits for one (the latest only); anything else is dropped: its generation is over.
        """
        self.post(lambda: self._send_or_drop(message))

    def drain(self) -> list[bytes | None]:
        """What was heard since the last call, oldest first."""
        self._arrived.clear()
        items = []
        while self._inbox:
            items.append(self._inbox.popleft())
        return items

    def wait(self, timeout_s: float) -> bool:
        """Wait until something was heard, at most `timeout_s`."""
        return self._arrived.wait(timeout_s)

    def joined(self, session: str, generation: str) -> None:
        """Heartbeats belong to this generation from now on."""
        self.post(lambda: self._set_generation((session, generation)))

    def progressed(self, step: int) -> None:
        """The local step that heartbeats tell."""
        if step != self._step:
            self._step, self._progress_at = step, time.monotonic()

    def _set_generation(self, generation: tuple[str, str] | None) -> None:
        self._generation, self._beat_at = generation, 0.0

    def _send_or_drop(self, message: IslandMessage) -> None:
        sent = self._send(message)
        if isinstance(message, Hello):
            self._unsent_hello = None if sent else message

    def _on_frames(self, parts: Sequence[frames.Buffer]) -> None:
        frames.decode_from_syncer(parts)  # judged here, so that a bad peer is told apart on this rank only
        self._put(bytes(parts[1]))

    def _on_lost(self) -> None:
        self._generation = None
        self._put(None)

    def _put(self, item: bytes | None) -> None:
        if item is None and self._inbox and self._inbox[-1] is None:
            return  # It broke again before anybody looked.
        if len(self._inbox) >= QUEUE_MESSAGES_MAX:
            raise PeerError(f"{len(self._inbox)} control messages wait for a step boundary; the trainer does not move")
        self._inbox.append(item)
        self._arrived.set()

    def _on_tick(self, now: float) -> None:
        if self._unsent_hello is not None:
            self._send_or_drop(self._unsent_hello)
        if self._generation is None or self._heartbeat_s <= 0 or now < self._beat_at:
            return
        if self._stall_s > 0 and now - self._progress_at > self._stall_s:
            return
        session, generation = self._generation
        if self._send(Heartbeat(session, generation, self._step)):
            self._beat_at = now + self._heartbeat_s
