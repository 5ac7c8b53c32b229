"""A rank's bulk link: uploads the pieces it was asked for, fetches the pieces that were published.

Both directions go by credit of the side that has room: the syncer grants windows for uploads (`uploads`), and this side
asks for so many chunks of a published value at a time (`fetches`). Here is what both share: who this rank is, and to
whom what came belongs. Transfer progress never reaches the session.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

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
    InGeneration,
    IslandMessage,
    Piece,
    Published,
    RankHello,
    RankWelcome,
    Refused,
    Superseded,
    Unknown,
    ValueName,
    Window,
)
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.numbers.digest import checksum
from swift_diloco.island.links.dealer import Dealer
from swift_diloco.island.links.fetches import Fetches, Pass
from swift_diloco.island.links.uploads import Outgoing
from swift_diloco.island.numbers.host_buffers import HostBuffers, Values


@dataclass(frozen=True)
class Traffic:
    """Payload bytes moved by this rank's link since it began."""

    pushed_bytes: int = 0
    fetched_bytes: int = 0


class BulkLink(Dealer):
    """The link of one rank that owns pieces."""

    def __init__(self, address: str, rank: int, buffers: HostBuffers, keys: CurveKeys | None = None) -> None:
        super().__init__(address, f"bulk link of rank {rank}", keys)
        self.rank = rank
        self._pushed_bytes = 0
        self._pieces: PieceMap | None = None
        self._admission: Pass | None = None
        self._hello_due = False
        self._fetches = Fetches(rank, self._send_if_known, buffers)
        self._outgoing = Outgoing(self._send_chunk)

    @property
    def traffic(self) -> Traffic:
        """So far."""
        return Traffic(self._pushed_bytes, self._fetches.fetched_bytes)

    # -- owner's side --------------------------------------------------------------------------------------------------

    def bind(self, pieces: PieceMap) -> None:
        """The fragments are known. Called before `introduce`."""
        self.post(lambda: self._bind(pieces))

    def introduce(
        self, granted: Pass, contract: Contract, held: Sequence[ValueName], spent: Collection[int] = ()
    ) -> None:
        """Belong to a generation. What was staged or uploading under an earlier one is void; `held` anchors need no
        fetch, and from those of the fragments `spent` the syncer holds a delta."""
        self._fetches.void()
        self._outgoing.clear()
        self.post(lambda: self._introduce(granted, contract, held, spent))

    def provides_init(self) -> None:
        """This island uploads the initial values: version 0 is what it already holds."""
        self.post(self._fetches.provides_init)

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
        self._fetches.only_exactly()
        self.post(lambda: self._fetches.want_exactly(names))

    def name_held(self, name: ValueName) -> None:
        """The anchor of this fragment bears this name now, as it is: never fetch it again."""
        self.post(lambda: self._fetches.name_held(name))

    def reserve(self, name: ValueName) -> bool:
        """Keep all this rank's pieces of exactly this value until `take` or `release`; False: they are not all here."""
        return self._fetches.reserve(name)

    def release(self, name: ValueName) -> None:
        """Not every rank has the value yet."""
        self._fetches.release(name)

    def take(self, name: ValueName) -> Values:
        """The reserved values, now the caller's, who installs them; give them back to the buffers when done."""
        values = self._fetches.take(name)
        self.post(lambda: self._installed(name))
        return values

    # -- membership (link's thread) ------------------------------------------------------------------------------------

    def _bind(self, pieces: PieceMap) -> None:
        self._pieces = pieces
        self._fetches.bind(pieces)

    def _introduce(self, granted: Pass, contract: Contract, held: Sequence[ValueName], spent: Collection[int]) -> None:
        self._admission = granted
        self._fetches.begin(granted, contract, held)
        self._outgoing.begin(chunks.Encoding(contract.delta_encoding), contract.error_feedback, spent)
        self._say_hello()

    def _say_hello(self) -> None:
        if self._admission is None or self._pieces is None:
            return
        m = self._admission
        self._hello_due = not self._send(RankHello(m.session, m.generation, m.token, self.rank, self._pieces.boxes))

    def _on_lost(self) -> None:
        """Same generation, new socket: say hello again before anything else."""
        self._hello_due = True
        self._fetches.connection_lost()

    def _on_tick(self, now: float) -> None:
        if self._hello_due:
            self._say_hello()

    def _installed(self, name: ValueName) -> None:
        self._outgoing.installed(name.fragment)
        self._fetches.name_held(name)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _on_frames(self, parts: Sequence[frames.Buffer]) -> None:
        message, payload = frames.decode_from_syncer(parts)
        if isinstance(message, Refused):
            self.trouble = f"the syncer refused rank {self.rank}: {message.reason}"
            return
        m = self._admission
        if m is None or not isinstance(message, InGeneration):
            return
        if (message.session, message.generation) != (m.session, m.generation):
            return
        match message:
            case Piece():
                assert payload is not None
                self._fetches.arrived(message, payload)
            case Published():
                self._fetches.want(message.name)
            case RankWelcome():
                for name in message.values:
                    self._fetches.want(name)
                self._fetches.ask()
            case Superseded():
                self._fetches.superseded(message)
            case Window():
                self._outgoing.granted(message)
            case Cancel():
                self.forget(message.upload)
            case Unknown():
                self.trouble = f"the syncer does not know rank {self.rank}: {message.reason}"
            case _:
                raise PeerError(f"the syncer sent {type(message).__name__} to a bulk link, which takes none")

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
            self._pushed_bytes += payload.nbytes
        return tracker

    def _send_if_known(self, message: IslandMessage) -> bool:
        """Nothing is asked of a syncer that does not know this rank on this socket yet."""
        return not self._hello_due and self._send(message)
