"""Receives what islands push: per upload and owner rank one stream of chunks, asked for by windows of credit.

Knows messages, links and buffers; not why an upload was opened. Everything runs on the server's thread.

Invariants:
* no rank may send more than `WINDOW_CHUNKS` beyond what has arrived, and all together no more than
  `RECEIVING_CHUNKS_MAX` (each rank with credit may always have `WINDOW_CHUNKS_MIN`, so a slow rank cannot
  starve the others);
* the chunks of a rank arrive in order; a chunk that is damaged or out of order is not written, and asked for again;
* float32 goes to its place in the flat values at once, every other encoding is kept as it came until it is read;
* a complete upload never changes, and stays until it is dropped or released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.formats import chunks
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS, Encoding
from swift_diloco.core.formats.frames import Buffer
from swift_diloco.core.formats.messages import Cancel, Chunk, SyncerMessage, Window
from swift_diloco.core.numbers.digest import checksum
from syncer.events import Event, OpenUpload, Peer, UploadCompleted, UploadFailed, UploadProgressed
from syncer.links.rank_links import RankLink, RankLinks
from syncer.numbers.buffers import ValueBuffers
from syncer.numbers.deltas import Delta, EncodedDelta, FlatDelta, flat_values
from syncer.numbers.fragment_stream import FragmentStream

WINDOW_CHUNKS = 16
"""Credit of one rank: 16 MiB in flight, which fills a link of 1 GB/s with 16 ms of latency."""

WINDOW_CHUNKS_MIN = 2
"""Credit that a rank gets even when everybody else's fills the bound: one chunk travels while one is asked for."""

RECEIVING_CHUNKS_MAX = 256
"""Credit of all ranks together: 256 MiB of messages in the server's queue at worst."""

DAMAGED_MAX = 3
"""Times that one chunk may arrive damaged before the upload is given up."""

PROGRESS_INTERVAL_S = 1.0
"""Least time between two reports of progress of one upload."""


@dataclass(eq=False)
class _RankUpload:
    """What one rank still has to send of one upload."""

    link: RankLink
    stream: FragmentStream
    chunks: int
    arrived: int = 0
    granted: int = 0
    rewind: bool = True
    """The next window names the first missing chunk, so that the rank goes back to it."""
    damaged: int = 0
    going_back: bool = False
    """A rewind was sent: chunks beyond the missing one are still on their way and are ignored."""

    @property
    def credit(self) -> int:
        return self.granted - self.arrived


@dataclass(eq=False)
class _Upload:
    name: str
    generation: str
    fragment: int
    encoding: Encoding
    delta: FlatDelta | EncodedDelta
    ranks: dict[int, _RankUpload]
    payload_bytes: int = 0
    progress_due: float = float("-inf")
    complete: bool = False


class Uploads:
    """All uploads, by name."""

    def __init__(
        self, session: str, links: RankLinks, send: Callable[[Peer, SyncerMessage], None], buffers: ValueBuffers
    ) -> None:
        self._session = session
        self._links = links
        self._send = send
        self._buffers = buffers
        self._uploads: dict[str, _Upload] = {}
        self._hungry: dict[tuple[str, int], _RankUpload] = {}
        self._credit = 0
        self.payload_bytes = 0
        """Bytes of good chunks since the start."""

    def open(self, effect: OpenUpload, elements: int) -> None:
        """Make room for an upload of a fragment of `elements`; windows go out with the next `grant`."""
        assert effect.upload not in self._uploads, f"upload {effect.upload} is opened twice"
        ranks: dict[int, _RankUpload] = {}
        for link in self._links.ranks(effect.generation):
            stream = link.stream(effect.fragment)
            if stream.elements:
                ranks[link.rank] = _RankUpload(link, stream, chunks.chunk_count(stream.elements))
        delta = self._room(effect.fragment, effect.encoding, elements, ranks)
        upload = _Upload(effect.upload, effect.generation, effect.fragment, effect.encoding, delta, ranks)
        self._uploads[effect.upload] = upload
        self._hungry.update({(upload.name, rank): each for rank, each in ranks.items()})

    def _room(
        self, fragment: int, encoding: Encoding, elements: int, ranks: dict[int, _RankUpload]
    ) -> FlatDelta | EncodedDelta:
        """Memory for what is going to arrive."""
        if encoding is Encoding.F32 or not ranks:
            return FlatDelta(self._buffers.take(elements))
        tensors = next(iter(ranks.values())).link.pieces.plan.fragments[fragment]
        streams = {rank: each.stream for rank, each in ranks.items()}
        return EncodedDelta(streams, encoding, tensors, self._buffers)

    def chunk(self, link: RankLink, message: Chunk, payload: Buffer, now: float) -> list[Event]:
        """A chunk came on a rank's own link. It is ignored if its upload was cancelled meanwhile."""
        upload = self._uploads.get(message.upload)
        rank = upload.ranks.get(link.rank) if upload is not None and upload.generation == link.generation else None
        if upload is None or rank is None or message.index < rank.arrived:
            return []
        if message.index > rank.arrived or message.index >= rank.granted:
            self._go_back(upload, rank)
            return []
        if not self._write(upload, rank, message, payload):
            rank.damaged += 1
            if rank.damaged >= DAMAGED_MAX:
                reason = f"chunk {message.index} of rank {link.rank} arrived damaged {rank.damaged} times"
                self.drop(upload.name, reason)
                return [UploadFailed(upload.name, reason)]
            rank.going_back = False
            self._go_back(upload, rank)
            return []
        return self._arrived(upload, rank, len(payload), now)

    def grant(self) -> None:
        """Send the windows that are due."""
        for key in list(self._hungry):
            rank = self._hungry.pop(key)
            room = max(RECEIVING_CHUNKS_MAX - self._credit, WINDOW_CHUNKS_MIN - rank.credit)
            more = min(WINDOW_CHUNKS - rank.credit, rank.chunks - rank.granted, room)
            if rank.link.peer is None or (more <= 0 and not rank.rewind):
                continue
            more = max(more, 0)
            name, _ = key
            first = rank.arrived if rank.rewind else rank.granted
            rank.granted += more
            self._credit += more
            rank.rewind = False
            generation, fragment = rank.link.generation, rank.stream.fragment
            self._send(rank.link.peer, Window(self._session, generation, name, fragment, first, rank.granted))

    def link_registered(self, link: RankLink) -> None:
        """A rank introduced itself (again): it sends on from the first missing chunk of each open upload."""
        for upload, rank in self._of(link.generation, link.rank):
            rank.link, rank.stream = link, link.stream(upload.fragment)
            self._void_credit(rank)
            rank.rewind, rank.going_back = True, False
            if rank.arrived < rank.chunks:
                self._hungry[upload.name, link.rank] = rank

    def link_lost(self, link: RankLink) -> None:
        """A rank's link is closed: what it was granted will not come."""
        for upload, rank in self._of(link.generation, link.rank):
            self._void_credit(rank)
            self._hungry.pop((upload.name, link.rank), None)

    def forget(self, generation: str, reason: str) -> None:
        """A generation is over: its unfinished uploads are void."""
        for upload in list(self._uploads.values()):
            if upload.generation == generation and not upload.complete:
                self.drop(upload.name, reason)

    def drop(self, name: str, reason: str) -> None:
        """Forget an upload and cancel what is left of it. Dropping one that is not there is no mistake."""
        upload = self._uploads.get(name)
        if upload is None:
            return
        if not upload.complete:
            for rank in upload.ranks.values():
                if rank.link.peer is not None:
                    self._send(rank.link.peer, Cancel(self._session, upload.generation, name, reason))
        self.release([name])

    def release(self, names: Iterable[str]) -> None:
        """Forget uploads. Whoever still reads their values may go on."""
        for name in names:
            upload = self._uploads.pop(name, None)
            if upload is None:
                continue
            for number, rank in upload.ranks.items():
                self._void_credit(rank)
                self._hungry.pop((name, number), None)

    def delta(self, name: str) -> Delta:
        """What a complete upload brought, as it is kept."""
        upload = self._uploads[name]
        assert upload.complete, f"upload {name} is not complete"
        return upload.delta

    def restore(self, name: str, generation: str, fragment: int, values: NDArray[np.float32]) -> None:
        """A complete upload of an earlier life of the syncer."""
        delta = FlatDelta(values)
        self._uploads[name] = _Upload(name, generation, fragment, Encoding.F32, delta, {}, values.nbytes, complete=True)

    def values(self, name: str) -> NDArray[np.float32]:
        """The same as float32, flat in layout order; decoded for the caller where it is kept encoded."""
        return flat_values(self.delta(name), self._buffers)

    def _of(self, generation: str, rank: int) -> list[tuple[_Upload, _RankUpload]]:
        """The unfinished uploads of one rank."""
        return [
            (upload, upload.ranks[rank])
            for upload in self._uploads.values()
            if upload.generation == generation and not upload.complete and rank in upload.ranks
        ]

    def _write(self, upload: _Upload, rank: _RankUpload, message: Chunk, payload: Buffer) -> bool:
        """Put a chunk into its place; False when it is damaged."""
        elements = chunks.chunk_elements(rank.stream.elements, message.index)
        begin = message.index * CHUNK_ELEMENTS
        if len(payload) != chunks.encoded_bytes(elements, upload.encoding) or checksum(payload) != message.checksum:
            return False
        if isinstance(upload.delta, EncodedDelta):
            upload.delta.put(rank.link.rank, message.index, payload)
        else:
            rank.stream.scatter(np.frombuffer(payload, "<f4"), begin, upload.delta.values)
        return True

    def _arrived(self, upload: _Upload, rank: _RankUpload, size: int, now: float) -> list[Event]:
        rank.arrived += 1
        rank.damaged, rank.going_back = 0, False
        self._credit -= 1
        upload.payload_bytes += size
        self.payload_bytes += size
        if rank.arrived == rank.chunks:
            if all(each.arrived == each.chunks for each in upload.ranks.values()):
                upload.complete = True
                return [UploadCompleted(upload.name, upload.payload_bytes)]
        elif rank.granted < rank.chunks and rank.credit <= WINDOW_CHUNKS // 2:
            self._hungry[upload.name, rank.link.rank] = rank
        if now < upload.progress_due:
            return []
        upload.progress_due = now + PROGRESS_INTERVAL_S
        return [UploadProgressed(upload.name)]

    def _go_back(self, upload: _Upload, rank: _RankUpload) -> None:
        """Ask again for the first missing chunk, once for all the chunks that are on their way behind it."""
        if not rank.going_back:
            rank.going_back = rank.rewind = True
            self._hungry[upload.name, rank.link.rank] = rank

    def _void_credit(self, rank: _RankUpload) -> None:
        self._credit -= rank.credit
        rank.granted = rank.arrived
