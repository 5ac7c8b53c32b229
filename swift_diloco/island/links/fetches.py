"""A rank's fetches: published values on their way into staging buffers, by credit of this side, and kept there.

Published values are fetched at once, the newest of each fragment only; *whether and when* one is installed is the
session's business. Knows no sockets: it is handed a way to send. Transfer progress stays here.

Invariants: at most `staged_max` fragments are staged or being staged; at most FETCH_CREDIT_CHUNKS chunks are asked for
and not yet received; once the final cut is asked for, nothing is staged that was not fetched exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from swift_diloco.core.errors import PeerError
from swift_diloco.core.formats import chunks, frames
from swift_diloco.core.formats.messages import Contract, Fetch, Fetched, IslandMessage, Piece, Superseded, ValueName
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.numbers import codec
from swift_diloco.core.numbers.digest import checksum
from swift_diloco.island.numbers.host_buffers import HostBuffers, Values

FETCH_CREDIT_CHUNKS = 16
"""Chunks asked for and not yet received: 16 MiB of float32, the bandwidth-delay product of 1.3 Gbit/s over 100 ms."""

FETCH_BATCH_CHUNKS = 4
"""Credit is renewed in steps of this many chunks, so that requests stay rare beside pieces."""

CHECKSUM_RETRIES_MAX = 8
"""Damaged pieces of one fetch that are asked for again before the link is called broken."""


@dataclass(frozen=True)
class Pass:
    """What admits this rank: the generation under which it moves its pieces."""

    session: str
    generation: str
    token: str


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


@dataclass
class _Shared:
    """What both threads touch, under one lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    staged: dict[int, Fetching] = field(default_factory=dict)
    reserved: dict[int, Fetching] = field(default_factory=dict)
    exact: bool = False
    """Only values that were fetched exactly are worth staging: the final cut is on its way."""


class Fetches:
    """What one rank fetches. `void`, `only_exactly`, `reserve`, `release` and `take` may be called by any thread,
    everything else by the link's."""

    def __init__(self, rank: int, send: Callable[[IslandMessage], bool], buffers: HostBuffers) -> None:
        self._rank = rank
        self._send = send
        self._buffers = buffers
        self._pieces: PieceMap | None = None
        self._contract = Contract()
        self._admission: Pass | None = None
        self._shared = _Shared()
        self._held: dict[int, ValueName] = {}
        self._own_init = False
        self._fetching: dict[int, Fetching] = {}
        self._queue: dict[int, ValueName] = {}
        self.fetched_bytes = 0
        """Payload received since the link began."""

    # -- owner's side --------------------------------------------------------------------------------------------------

    def void(self) -> None:
        """A generation is over: what was staged under it is not wanted."""
        with self._shared.lock:
            self._shared.staged.clear()
            self._shared.reserved.clear()
            self._shared.exact = False

    def only_exactly(self) -> None:
        """From now on only what was fetched in float32 is reserved."""
        with self._shared.lock:
            self._shared.exact = True

    def reserve(self, name: ValueName) -> bool:
        """Keep all this rank's pieces of exactly this value until `take` or `release`; False: they are not all here."""
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
        """The reserved values, now the caller's. Empty where the rank owns nothing."""
        if self._owns_nothing_of(name.fragment):
            return np.empty(0, dtype=np.float32)
        with self._shared.lock:
            return self._shared.reserved.pop(name.fragment).values

    def _owns_nothing_of(self, fragment: int) -> bool:
        return self._pieces is not None and self._pieces.elements(fragment) == 0

    # -- membership ----------------------------------------------------------------------------------------------------

    def bind(self, pieces: PieceMap) -> None:
        """The fragments are known."""
        self._pieces = pieces

    def begin(self, granted: Pass, contract: Contract, held: Sequence[ValueName]) -> None:
        """A new generation, whose `held` anchors need no fetch."""
        self._admission, self._contract, self._own_init = granted, contract, False
        self._held = {name.fragment: name for name in held}
        self._fetching.clear()
        self._queue.clear()

    def connection_lost(self) -> None:
        """What was asked for and did not arrive will not: fetches go on at their first missing chunk."""
        for fetching in self._fetching.values():
            fetching.asked = fetching.received

    def provides_init(self) -> None:
        """Version 0 is what this island uploads itself."""
        self._own_init = True

    def name_held(self, name: ValueName) -> None:
        """The anchor of this fragment bears this name: never fetch it again."""
        self._held[name.fragment] = name
        self._start()

    # -- what is wanted ------------------------------------------------------------------------------------------------

    @property
    def _staged_max(self) -> int:
        assert self._pieces is not None
        return 2 * -(-len(self._pieces.plan) // max(1, self._contract.sync_every_steps)) + 2

    @property
    def _has_initial(self) -> bool:
        """Version 0 is what this rank uploaded, to the bit."""
        return self._own_init and self._encoding is chunks.Encoding.F32

    @property
    def _encoding(self) -> chunks.Encoding:
        """That of published values."""
        return chunks.Encoding(self._contract.publish_encoding)

    def want_exactly(self, names: Sequence[ValueName]) -> None:
        """The values of the final cut, also those that are held in the encoding of published values."""
        for name in names:
            self._held.pop(name.fragment, None)
            self.want(name)

    def want(self, name: ValueName) -> None:
        """A value was published: fetch it unless it is held, staged, or owned by nobody here; it replaces an
        older one."""
        assert self._pieces is not None
        if self._held.get(name.fragment) == name or (self._has_initial and name.version == 0):
            return
        if self._pieces.elements(name.fragment) == 0 or self._is_on_its_way(name):
            return
        self._queue[name.fragment] = name
        self._abandon(name.fragment)
        self._start()

    def superseded(self, message: Superseded) -> None:
        """The syncer has the value no more."""
        fetching = self._fetching.get(message.old.fragment)
        if fetching is not None and fetching.name == message.old:
            self.want(message.present)

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

    # -- fetching ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
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
        self.ask()

    def ask(self) -> None:
        """Spend the free credit, oldest fetch first."""
        if self._admission is None:
            return
        m = self._admission
        free = FETCH_CREDIT_CHUNKS - sum(f.asked - f.received for f in self._fetching.values())
        for fetching in self._fetching.values():
            count = min(free, fetching.chunks - fetching.asked)
            if count <= 0 or (count < FETCH_BATCH_CHUNKS and fetching.asked + count < fetching.chunks):
                continue
            name, first = fetching.name, fetching.asked
            if not self._send(Fetch(m.session, m.generation, self._rank, name, first, count, exact=fetching.exact)):
                return
            fetching.asked += count
            free -= count

    def arrived(self, piece: Piece, payload: frames.Buffer) -> None:
        """One chunk; taken if it is the next one of a fetch."""
        fetching = self._fetching.get(piece.name.fragment)
        if fetching is None or (fetching.name, fetching.exact) != (piece.name, piece.exact):
            return
        if piece.index != fetching.received:
            return
        begin = piece.index * chunks.CHUNK_ELEMENTS
        part = fetching.values[begin : begin + chunks.CHUNK_ELEMENTS]
        encoding = chunks.Encoding.F32 if piece.exact else self._encoding
        if len(payload) != chunks.encoded_bytes(part.size, encoding) or checksum(payload) != piece.checksum:
            self._ask_again(fetching)
            return
        codec.decode(payload, encoding, part)
        self.fetched_bytes += len(payload)
        fetching.received += 1
        if fetching.complete:
            self._stage(fetching)
        self.ask()

    def _ask_again(self, fetching: Fetching) -> None:
        """A damaged piece: what follows it is asked for once more."""
        fetching.damaged += 1
        if fetching.damaged > CHECKSUM_RETRIES_MAX:
            raise PeerError(f"{fetching.damaged} damaged pieces of {fetching.name}; the network or a host is broken")
        fetching.asked = fetching.received
        self.ask()

    def _stage(self, fetching: Fetching) -> None:
        del self._fetching[fetching.name.fragment]
        with self._shared.lock:
            self._shared.staged[fetching.name.fragment] = fetching
        assert self._admission is not None
        m = self._admission
        self._send(Fetched(m.session, m.generation, self._rank, fetching.name))
        self._start()
