"""Serves published values: each rank asks for chunks of its own stream, and gets no more than it asked for.

Knows messages, links and the present values; not why a rank wants one. Everything runs on the server's thread.

Invariants:
* a value is sent from the buffer it was published in, without a copy where the chunk is one run of it and
  travels as float32;
* an island that began to fetch a value keeps it (a pin) until all its ranks have it or moved on to a newer one; at most
  `pinned_max` values that are no longer present live for that, beyond it the oldest pin is superseded, but no island is
  superseded more than `SUPERSEDED_MAX` times running on one fragment;
* a slow rank holds at most `LINK_PIECES_MAX` pieces in ZeroMQ's queue, and every link with a wish gets its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import zmq
from numpy.typing import NDArray

from swift_diloco.core.formats import chunks, tape_lines
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS, Encoding
from swift_diloco.core.formats.frames import Buffer
from swift_diloco.core.formats.messages import Fetch, Fetched, Piece, Refused, Superseded, SyncerMessage, ValueName
from swift_diloco.core.numbers import codec
from swift_diloco.core.numbers.digest import checksum
from syncer.events import Peer
from syncer.links.rank_links import RankLink, RankLinks
from syncer.numbers.buffers import PieceBuffers
from syncer.numbers.fragment_stream import FragmentStream, empty_values
from syncer.numbers.global_state import GlobalState, Value

FETCH_CHUNKS_MAX = 64
"""Largest credit in one Fetch: 64 MiB."""

FETCHES_WAITING_MAX = 256
"""Fetches of one rank that wait for their turn: what a rank with many fragments may ask for at once, with
room to spare."""

LINK_PIECES_MAX = 32
"""Pieces of one rank in ZeroMQ's queue: 32 MiB, enough to keep a fast link busy between two turns of the server."""

PIECE_BUFFERS_MAX = 64
"""Buffers of one chunk (1 MiB) for pieces that do not lie in one run: 64 MiB, more than loopback has in flight."""

PUMP_PIECES_MAX = 64
"""Pieces sent before the server looks at its messages again: control waits some 20 ms at most."""

SUPERSEDED_MAX = 2
"""Times running that an island may lose its pin of one fragment; then it keeps it, so that a slow
island gets through."""

PINNED_MAX = 8
"""Values that are no longer present and live for pins, when the settings do not say."""


class Post(Protocol):
    """How bulk leaves. Both never block."""

    def send(self, peer: Peer, message: SyncerMessage) -> None:
        """Send a message, or report the peer as gone."""
        ...

    def send_piece(self, peer: Peer, message: Piece, payload: Buffer) -> zmq.MessageTracker | None:
        """Send a piece without copying its payload; None when the peer cannot take it."""
        ...


@dataclass(eq=False)
class _Pin:
    """One generation fetches one value."""

    value: Value
    island: int
    waiting: set[int]
    """Ranks that still need it."""
    finished: set[int] = field(default_factory=set)
    """Ranks that have it, or moved on to a newer value."""
    sent_bytes: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class _Wish:
    """What is left of one Fetch."""

    value: Value
    pin: _Pin
    next: int
    end: int
    exact: bool
    encoding: Encoding


@dataclass(eq=False)
class _Queue:
    """What one rank's link has to get."""

    link: RankLink
    wishes: deque[_Wish] = field(default_factory=deque)
    trackers: deque[zmq.MessageTracker] = field(default_factory=deque)


@dataclass(frozen=True)
class FetchRules:
    """How values leave."""

    session: str
    pinned_max: int = PINNED_MAX
    """Most values that are no longer present and live for pins."""
    encoding: Encoding = Encoding.F32
    """How values travel to ranks that do not ask for them exactly."""


class Fetches:
    """Wishes of all ranks, and the pins of their islands."""

    def __init__(
        self,
        rules: FetchRules,
        links: RankLinks,
        state: GlobalState,
        post: Post,
        write_tape: Callable[[tape_lines.TapeLine], None],
    ) -> None:
        self._rules = rules
        self._session = rules.session
        self._links = links
        self._state = state
        self._post = post
        self._write_tape = write_tape
        self._pins: dict[tuple[str, ValueName], _Pin] = {}
        self._superseded: dict[tuple[str, int], int] = {}
        self._queues: dict[Peer, _Queue] = {}
        self._buffers = PieceBuffers(PIECE_BUFFERS_MAX)
        self._room = empty_values(CHUNK_ELEMENTS)
        self.payload_bytes = 0
        """Bytes of pieces since the start."""

    def fetch(self, link: RankLink, message: Fetch) -> None:
        """A rank asks, on its own link, for chunks of a value."""
        assert link.peer is not None
        name, present = message.name, self._state.present(message.name.fragment)
        if present is None:
            self._refuse(
                link, f"a fetch of fragment {name.fragment}, which has no value; expected one that was published"
            )
            return
        pin = self._pins.get((link.generation, name))
        if pin is None and name != present.name:
            self._post.send(link.peer, Superseded(self._session, link.generation, name, present.name))
            return
        count = chunks.chunk_count(link.stream(name.fragment).elements)
        queue = self._queues.setdefault(link.peer, _Queue(link))
        if not (0 <= message.first < count and 0 < message.count <= FETCH_CHUNKS_MAX):
            self._refuse(
                link,
                f"a fetch of {message.count} chunks from number {message.first}; this rank has {count} of fragment "
                f"{name.fragment} and may ask for 1 to {FETCH_CHUNKS_MAX} at once",
            )
            return
        if len(queue.wishes) >= FETCHES_WAITING_MAX:
            self._refuse(link, f"more than {FETCHES_WAITING_MAX} fetches at once")
            return
        pin = pin or self._pin(link, present)
        if link.rank not in pin.finished:
            pin.waiting.add(link.rank)  # It may have introduced itself after the pin was made.
        self._moved_on(link, pin.value.name)
        end = min(message.first + message.count, count)
        encoding = Encoding.F32 if message.exact else self._rules.encoding
        queue.wishes.append(_Wish(pin.value, pin, message.first, end, message.exact, encoding))

    def fetched(self, link: RankLink, message: Fetched) -> None:
        """A rank has all its pieces of a value."""
        pin = self._pins.get((link.generation, message.name))
        if pin is None or link.rank not in pin.waiting:
            return
        name = message.name
        line = tape_lines.Fetched(
            island=pin.island,
            generation=link.generation,
            rank=link.rank,
            fragment=name.fragment,
            version=name.version,
            digest=name.digest,
            bytes=pin.sent_bytes.get(link.rank, 0),
        )
        self._write_tape(line)
        self._leave(pin, link)
        if not pin.waiting:
            self._superseded.pop((link.generation, name.fragment), None)

    def value_replaced(self) -> None:
        """A commit was made: of the values that live only for pins, keep `pinned_max`."""
        while len(old := self._old_values()) > self._rules.pinned_max:
            loser = min(
                (key for key, pin in self._pins.items() if pin.value.name in old and self._may_supersede(key)),
                key=lambda key: (key[1].version, key[1].fragment, key[0]),
                default=None,
            )
            if loser is None:
                return
            self._supersede(*loser)

    def link_lost(self, peer: Peer) -> None:
        """A link is closed: nothing is sent there any more. The pins stay for the rank's next link."""
        self._queues.pop(peer, None)

    def forget(self, generation: str) -> None:
        """A generation is over: its pins go."""
        for key in [key for key in self._pins if key[0] == generation]:
            del self._pins[key]
        for fragment in [key for key in self._superseded if key[0] == generation]:
            del self._superseded[fragment]
        for peer in [peer for peer, queue in self._queues.items() if queue.link.generation == generation]:
            del self._queues[peer]

    def pump(self) -> bool:
        """Send pieces in turns over the links; whether any wish is left."""
        left = PUMP_PIECES_MAX
        busy = True
        while busy and left > 0:
            busy = False
            for queue in list(self._queues.values()):
                if left > 0 and queue.wishes and self._send_one(queue):
                    busy = True
                    left -= 1
        return any(queue.wishes for queue in self._queues.values())

    @property
    def pinned(self) -> int:
        """Values that are no longer present and live for pins."""
        return len(self._old_values())

    def _pin(self, link: RankLink, value: Value) -> _Pin:
        fragment = value.name.fragment
        owners = {each.rank for each in self._links.ranks(link.generation) if each.stream(fragment).elements}
        pin = self._pins[link.generation, value.name] = _Pin(value, link.island, owners)
        return pin

    def _moved_on(self, link: RankLink, name: ValueName) -> None:
        """A rank that fetches a newer value needs the older ones of that fragment no more."""
        for (generation, other), pin in list(self._pins.items()):
            if generation == link.generation and other.fragment == name.fragment and other.version < name.version:
                self._leave(pin, link)

    def _leave(self, pin: _Pin, link: RankLink) -> None:
        pin.waiting.discard(link.rank)
        pin.finished.add(link.rank)
        if link.peer in self._queues:
            queue = self._queues[link.peer]
            queue.wishes = deque(wish for wish in queue.wishes if wish.pin is not pin)
        if not pin.waiting:
            self._pins.pop((link.generation, pin.value.name), None)

    def _old_values(self) -> set[ValueName]:
        present = set(self._state.names)
        return {name for _, name in self._pins if name not in present}

    def _may_supersede(self, key: tuple[str, ValueName]) -> bool:
        generation, name = key
        return self._superseded.get((generation, name.fragment), 0) < SUPERSEDED_MAX

    def _supersede(self, generation: str, name: ValueName) -> None:
        pin = self._pins.pop((generation, name))
        present = self._state.present(name.fragment)
        assert present is not None
        self._superseded[generation, name.fragment] = self._superseded.get((generation, name.fragment), 0) + 1
        for link in self._links.ranks(generation):
            if link.rank not in pin.waiting or link.peer is None:
                continue
            if link.peer in self._queues:
                queue = self._queues[link.peer]
                queue.wishes = deque(wish for wish in queue.wishes if wish.pin is not pin)
            self._post.send(link.peer, Superseded(self._session, generation, name, present.name))

    def _send_one(self, queue: _Queue) -> bool:
        """Send the next piece of a link, when it has room for one."""
        while queue.trackers and queue.trackers[0].done:
            queue.trackers.popleft()
        peer, wish = queue.link.peer, queue.wishes[0]
        if peer is None or len(queue.trackers) >= LINK_PIECES_MAX:
            return False
        stream = queue.link.stream(wish.value.name.fragment)
        begin = wish.next * CHUNK_ELEMENTS
        end = min(begin + CHUNK_ELEMENTS, stream.elements)
        in_place = wish.encoding is Encoding.F32 and stream.contiguous(begin, end) is not None
        buffer = None if in_place else self._buffers.take()
        if buffer is None and not in_place:
            return False
        payload = self._payload(wish, stream, (begin, end), buffer)
        generation, name = queue.link.generation, wish.value.name
        piece = Piece(self._session, generation, name, wish.next, checksum(payload), wish.exact)
        tracker = self._post.send_piece(peer, piece, payload)
        if buffer is not None:
            if tracker is None:
                self._buffers.give(buffer)
            else:
                self._buffers.sending(buffer, tracker)
        if tracker is None:
            return False
        queue.trackers.append(tracker)
        self._sent(queue, wish, len(payload))
        return True

    def _payload(
        self, wish: _Wish, stream: FragmentStream, span: tuple[int, int], buffer: NDArray[np.float32] | None
    ) -> Buffer:
        """The bytes of the stream range `span`: in `buffer`, or without one where they lie."""
        begin, end = span
        run = stream.contiguous(begin, end)
        if run is not None:
            values = wish.value.values[run]
        else:
            values = (buffer if wish.encoding is Encoding.F32 and buffer is not None else self._room)[: end - begin]
            stream.gather(wish.value.values, begin, values)
        if wish.encoding is Encoding.F32 or buffer is None:
            return values.view(np.uint8).data
        room = buffer.view(np.uint8)[: chunks.encoded_bytes(end - begin, wish.encoding)]
        return codec.encode(values, wish.encoding, room).data

    def _sent(self, queue: _Queue, wish: _Wish, size: int) -> None:
        rank = queue.link.rank
        self.payload_bytes += size
        wish.pin.sent_bytes[rank] = wish.pin.sent_bytes.get(rank, 0) + size
        wish.next += 1
        if wish.next == wish.end:
            queue.wishes.popleft()

    def _refuse(self, link: RankLink, reason: str) -> None:
        assert link.peer is not None
        self._post.send(link.peer, Refused(self._session, "", reason))
