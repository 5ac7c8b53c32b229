"""A rank's bulk link: uploads the pieces it was asked for, fetches the pieces that were published.

Both directions go by credit of the side that has room: the syncer grants windows for uploads (`outgoing`), and this
side asks for so many chunks of a published value at a time. Published values are fetched at once, the newest of each
fragment only; *whether and when* one is installed is the session's business. Transfer progress stays here and never
reaches the session.

Invariants: at most `staged_max` fragments are staged or being staged; at most FETCH_CREDIT_CHUNKS chunks are asked for
and not yet received; once the final cut is asked for, nothing is staged that was not fetched exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import zmq
from numpy.typing import NDArray

from swift_diloco.core.errors import PeerError
from swift_diloco.core.files.key_files import CurveKeys
from swift_diloco.core.formats import chunks, frames
from swift_diloco.core.formats.messages import (
    Cancel,
    Chunk,
    Contract,
    Fetch,
    Fetched,
    Piece,
    Published,
    RankHello,
    RankWelcome,
    Refused,
    Superseded,
    ValueName,
    Window,
)
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.numbers import codec
from swift_diloco.core.numbers.digest import checksum
from swift_diloco.island.links.dealer import Dealer
from swift_diloco.island.links.uploads import Outgoing
from swift_diloco.island.numbers.host_buffers import HostBuffers, Values

FETCH_CREDIT_CHUNKS = 16
"""Chunks asked for and not yet received: 16 MiB of float32, the bandwidth-delay product of 1.3 Gbit/s over 100 ms."""

FETCH_BATCH_CHUNKS = 4
"""Credit is renewed in steps of this many chunks, so that requests stay rare beside pieces."""

CHECKSUM_RETRIES_MAX = 8
"""Damaged pieces of one fetch that are asked for again before the link is called broken."""


@dataclass
class Fetching:
    """One published value on its way into a staging buffer."""

    name: ValueName
    values: Values
    chunks: int
    exact: bool = False
    """In float32, whatever the encoding of published values."""
    received: int = 0
    asked: int = 0
    damaged: int = 0

    @property
    def complete(self) -> bool:
        return self.received == self.chunks


@dataclass(frozen=True)
class Pass:
    """What admits this rank: the generation under which it moves its pieces."""

    session: str
    generation: str
    token: str


@dataclass
class Traffic:
    """Payload bytes moved by this rank's link since it began."""

    pushed_bytes: int = 0
    fetched_bytes: int = 0


@dataclass
class _Shared:
    """What both threads touch, under one lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    staged: dict[int, Fetching] = field(default_factory=dict)
    reserved: dict[int, Fetching] = field(default_factory=dict)
    exact: bool = False
    """Only values that were fetched exactly are worth staging: the final cut is on its way."""


class BulkLink(Dealer):
    """See the module. One per rank that owns pieces."""

    def __init__(self, address: str, rank: int, buffers: HostBuffers, keys: CurveKeys | None = None) -> None:
        super().__init__(address, f"bulk link of rank {rank}", keys)
        self.rank = rank
        self.traffic = Traffic()
        self._buffers = buffers
        self._pieces: PieceMap | None = None
        self._contract = Contract()
        self._admission: Pass | None = None
        self._shared = _Shared()
        self._held: dict[int, ValueName] = {}
        self._own_init = False
        self._fetching: dict[int, Fetching] = {}
        self._queue: dict[int, ValueName] = {}
        self._outgoing = Outgoing(self._send_chunk)

    # -- owner's side --------------------------------------------------------------------------------------------------

    def bind(self, pieces: PieceMap) -> None:
        """The fragments are known. Called before `introduce`."""
        self.post(lambda: self._bind(pieces))

    def introduce(
        self, granted: Pass, contract: Contract, held: Sequence[ValueName], spent: Collection[int] = ()
    ) -> None:
        """Belong to a generation. What was staged or uploading under an earlier one is void; `held` anchors need no
        fetch, and from those of the fragments `spent` the syncer holds a delta."""
        with self._shared.lock:
            self._shared.staged.clear()
            self._shared.reserved.clear()
            self._shared.exact = False
        self._outgoing.clear()
        self.post(lambda: self._introduce(granted, contract, held, spent))

    def provides_init(self) -> None:
        """This island uploads the initial values: version 0 is what it already holds."""
        self.post(self._set_own_init)

    def offer(self, upload: str, values: Values, fragment: int | None = None) -> None:
        """Make captured values (stream order, f32) ready for the windows the syncer grants. `fragment` is None for
        initial values."""
        self._outgoing.offer(upload, values, fragment)
        self.post(lambda: self._outgoing.send_window(upload))

    def forget(self, upload: str, *, counted: bool = False) -> Values | None:
        """The upload is over (`counted`: the syncer holds it) or not wanted; its values are the caller's again."""
        values = self._outgoing.forget(upload)
        self.post(lambda: self._forget(upload, counted))
        return values

    def fetch_exactly(self, names: Sequence[ValueName]) -> None:
        """Fetch these values in float32, also those that are held or staged in the encoding of published values."""
        with self._shared.lock:
            self._shared.exact = True
        self.post(lambda: self._fetch_exactly(names))

    def name_held(self, name: ValueName) -> None:
        """The anchor of this fragment bears this name now, as it is: never fetch it again."""
        self.post(lambda: self._set_held(name))

    def reserve(self, name: ValueName) -> bool:
        """Whether all this rank's pieces of exactly this value are here; they stay until `take` or `release`."""
        if self._owns_nothing_of(name.fragment):
            return True
        with self._shared.lock:
            found = self._shared.staged.get(name.fragment)
            if found is None or found.name != name or (self._shared.exact and not found.exact):
                return False
            self._shared.reserved[name.fragment] = self._shared.staged.pop(name.fragment)
            return True

    def release(self, name: ValueName) -> None:
        """Not every rank has the value yet: it goes back to the staged ones (a newer one may replace it there)."""
        with self._shared.lock:
            found = self._shared.reserved.pop(name.fragment, None)
            if found is not None:
                self._shared.staged.setdefault(name.fragment, found)

    def take(self, name: ValueName) -> Values:
        """The reserved values, now the caller's; give them back to the buffers when done. Empty where the
        rank owns nothing."""
        if self._owns_nothing_of(name.fragment):
            return np.empty(0, dtype=np.float32)
        with self._shared.lock:
            values = self._shared.reserved.pop(name.fragment).values
        self.post(lambda: self._installed(name))
        return values

    def _owns_nothing_of(self, fragment: int) -> bool:
        return self._pieces is not None and self._pieces.elements(fragment) == 0

    # -- membership (link's thread) ------------------------------------------------------------------------------------

    def _bind(self, pieces: PieceMap) -> None:
        self._pieces = pieces

    def _introduce(self, granted: Pass, contract: Contract, held: Sequence[ValueName], spent: Collection[int]) -> None:
        self._admission, self._contract, self._own_init = granted, contract, False
        self._held = {name.fragment: name for name in held}
        self._fetching.clear()
        self._queue.clear()
        self._outgoing.begin(chunks.Encoding(contract.delta_encoding), contract.error_feedback, spent)
        self._say_hello()

    def _say_hello(self) -> None:
        if self._admission is None or self._pieces is None:
            return
        m = self._admission
        self._hello_due = not self._send(RankHello(m.session, m.generation, m.token, self.rank, self._pieces.boxes))

    _hello_due = False

    def _on_lost(self) -> None:
        """Same generation, new socket: say hello again; fetches continue at the first missing chunk."""
        self._hello_due = True
        for fetching in self._fetching.values():
            fetching.asked = fetching.received

    def _on_tick(self, now: float) -> None:
        if self._hello_due:
            self._say_hello()

    def _set_own_init(self) -> None:
        self._own_init = True

    def _set_held(self, name: ValueName) -> None:
        self._held[name.fragment] = name
        self._start_fetches()

    def _installed(self, name: ValueName) -> None:
        self._outgoing.installed(name.fragment)
        self._set_held(name)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _on_frames(self, parts: Sequence[frames.Buffer]) -> None:
        message, payload = frames.decode_from_syncer(parts)
        if isinstance(message, Refused):
            self.trouble = f"the syncer refused rank {self.rank}: {message.reason}"
            return
        m = self._admission
        ours = m is not None and getattr(message, "generation", "") == m.generation and message.session == m.session
        if not ours:
            return
        match message:
            case Piece():
                assert payload is not None
                self._on_piece(message, payload)
            case Published():
                self._want(message.name)
            case RankWelcome():
                for name in message.values:
                    self._want(name)
                self._ask()
            case Superseded():
                self._superseded(message)
            case Window():
                self._outgoing.granted(message)
            case Cancel():
                self.forget(message.upload)

    # -- uploads -------------------------------------------------------------------------------------------------------

    def _forget(self, upload: str, counted: bool) -> None:
        self._outgoing.drop_window(upload)
        self._outgoing.answered(upload, counted)

    def _send_chunk(self, upload: str, index: int, payload: NDArray[np.uint8]) -> zmq.MessageTracker | None:
        if self._admission is None:
            return None
        m = self._admission
        chunk = Chunk(m.session, m.generation, upload, self.rank, index, checksum(payload))
        tracker = self._send_bulk(chunk, payload.data)
        if tracker is not None:
            self.traffic.pushed_bytes += payload.nbytes
        return tracker

    # -- fetches -------------------------------------------------------------------------------------------------------

    @property
    def _staged_max(self) -> int:
        assert self._pieces is not None
        return 2 * -(-len(self._pieces.plan) // max(1, self._contract.sync_every_steps)) + 2

    @property
    def _has_initial(self) -> bool:
        """Version 0 is what this rank uploaded, to the bit."""
        return self._own_init and self._publish_encoding is chunks.Encoding.F32

    @property
    def _publish_encoding(self) -> chunks.Encoding:
        return chunks.Encoding(self._contract.publish_encoding)

    def _fetch_exactly(self, names: Sequence[ValueName]) -> None:
        for name in names:
            self._held.pop(name.fragment, None)
            self._want(name)

    def _want(self, name: ValueName) -> None:
        """A value was published: fetch it unless it is held, staged, or owned by nobody here; it replaces
        an older one."""
        assert self._pieces is not None
        if self._held.get(name.fragment) == name or (self._has_initial and name.version == 0):
            return
        if self._pieces.elements(name.fragment) == 0 or self._is_on_its_way(name):
            return
        self._queue[name.fragment] = name
        self._abandon(name.fragment)
        self._start_fetches()

    def _is_on_its_way(self, name: ValueName) -> bool:
        with self._shared.lock:
            here = (self._shared.staged.get(name.fragment), self._shared.reserved.get(name.fragment))
            exact = self._shared.exact
        known = (*here, self._fetching.get(name.fragment))
        return any(f is not None and f.name == name and (f.exact or not exact) for f in known)

    def _abandon(self, fragment: int) -> None:
        fetching = self._fetching.pop(fragment, None)
        with self._shared.lock:
            staged = self._shared.staged.pop(fragment, None)
        for old in (fetching, staged):
            if old is not None:
                self._buffers.give(old.values)

    def _start_fetches(self) -> None:
        with self._shared.lock:
            occupied = len(self._shared.staged) + len(self._shared.reserved) + len(self._fetching)
            exact = self._shared.exact
        while self._queue and occupied < self._staged_max:
            fragment = next(iter(self._queue))
            name = self._queue.pop(fragment)
            assert self._pieces is not None
            elements = self._pieces.elements(fragment)
            buffer = self._buffers.take(elements)
            self._fetching[fragment] = Fetching(name, buffer, chunks.chunk_count(elements), exact)
            occupied += 1
        self._ask()

    def _ask(self) -> None:
        """Spend the free credit, oldest fetch first."""
        if self._admission is None or self._hello_due:
            return
        m = self._admission
        free = FETCH_CREDIT_CHUNKS - sum(f.asked - f.received for f in self._fetching.values())
        for fetching in self._fetching.values():
            count = min(free, fetching.chunks - fetching.asked)
            if count <= 0 or (count < FETCH_BATCH_CHUNKS and fetching.asked + count < fetching.chunks):
                continue
            fetch = Fetch(
                m.session, m.generation, self.rank, fetching.name, fetching.asked, count, exact=fetching.exact
            )
            if not self._send(fetch):
                return
            fetching.asked += count
            free -= count

    def _on_piece(self, piece: Piece, payload: frames.Buffer) -> None:
        fetching = self._fetching.get(piece.name.fragment)
        if fetching is None or (fetching.name, fetching.exact) != (piece.name, piece.exact):
            return
        if piece.index != fetching.received:
            return
        begin = piece.index * chunks.CHUNK_ELEMENTS
        part = fetching.values[begin : begin + chunks.CHUNK_ELEMENTS]
        encoding = chunks.Encoding.F32 if piece.exact else self._publish_encoding
        if len(payload) != chunks.encoded_bytes(part.size, encoding) or checksum(payload) != piece.checksum:
            self._ask_again(fetching)
            return
        codec.decode(payload, encoding, part)
        self.traffic.fetched_bytes += len(payload)
        fetching.received += 1
        if fetching.complete:
            self._finish(fetching)
        self._ask()

    def _ask_again(self, fetching: Fetching) -> None:
        """A damaged piece: what follows it is asked for once more."""
        fetching.damaged += 1
        if fetching.damaged > CHECKSUM_RETRIES_MAX:
            raise PeerError(f"{fetching.damaged} damaged pieces of {fetching.name}; the network or a host is broken")
        fetching.asked = fetching.received
        self._ask()

    def _finish(self, fetching: Fetching) -> None:
        del self._fetching[fetching.name.fragment]
        with self._shared.lock:
            self._shared.staged[fetching.name.fragment] = fetching
        assert self._admission is not None
        m = self._admission
        self._send(Fetched(m.session, m.generation, self.rank, fetching.name))
        self._start_fetches()

    def _superseded(self, message: Superseded) -> None:
        fetching = self._fetching.get(message.old.fragment)
        if fetching is not None and fetching.name == message.old:
            self._want(message.present)
