"""What a rank does when its session says so: the links, the anchors and the model of one rank.

Performs deeds and says words; decides nothing, asks no session and never waits for the network. Effects that end or
interrupt the training are the island's, and so is the vote: nothing is said here before it.

Invariant: all installs of one boundary are written into the model in one go, before the boundary's other deeds.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from swift_diloco.core.errors import DilocoError
from swift_diloco.core.formats.messages import Hello, IslandMessage, ValueName
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout
from swift_diloco.island import events
from swift_diloco.island.files.record import ResumedRank
from swift_diloco.island.links.bulk_link import BulkLink, Traffic
from swift_diloco.island.links.control_link import ControlLink
from swift_diloco.island.links.fetches import Pass
from swift_diloco.island.numbers.anchor_store import AnchorStore, Arrival
from swift_diloco.island.numbers.host_buffers import HostBuffers, Values
from swift_diloco.island.numbers.model_pieces import ModelPieces

logger = logging.getLogger("swift_diloco")


@dataclass(frozen=True)
class Introduction:
    """What an island tells of itself in every Hello."""

    island: int
    instance: str
    layout: Layout
    boxes: tuple[Box, ...]
    """This rank's."""
    owners: int
    """Ranks of the island that own pieces; known on rank 0."""


@dataclass(frozen=True)
class Links:
    """This rank's links: control on rank 0, bulk where it owns pieces."""

    control: ControlLink | None
    bulk: BulkLink | None
    buffers: HostBuffers
    """Shared with the bulk link."""


class Performer:
    """Performs effects on the pieces of one rank."""

    def __init__(self, model: ModelPieces, links: Links, about: Introduction, resumed: ResumedRank) -> None:
        self._model = model
        self._control, self._bulk = links.control, links.bulk
        self._about = about
        self._resumed = resumed
        self._buffers = links.buffers
        self.pieces: PieceMap | None = None
        self.values: AnchorStore | None = None

    # -- for the vote --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what went wrong in a link's thread."""
        for link in (self._control, self._bulk):
            if link is not None:
                link.check()

    def reserve(self, wanted: Sequence[ValueName]) -> list[bool]:
        """Keep what this rank has in full of the wanted values, until taken or released; says of each whether."""
        return [self._bulk is None or self._bulk.reserve(name) for name in wanted]

    def release(self, name: ValueName) -> None:
        """Another rank does not have the value yet."""
        if self._bulk is not None:
            self._bulk.release(name)

    @property
    def traffic(self) -> Traffic:
        """Payload bytes moved by this rank."""
        return self._bulk.traffic if self._bulk is not None else Traffic()

    # -- effects -------------------------------------------------------------------------------------------------------

    def perform(self, deeds: Sequence[events.Deed]) -> None:
        """In order, the installs in one go. Not collective: what goes wrong here leaves no other rank waiting."""
        if installs := events.installs_of(deeds):
            self._install(installs)
        for deed in deeds:
            self._perform(deed)

    def spread(self, installs: Sequence[events.Install]) -> None:
        """Carry what all ranks have installed to their copies of each other's values. Collective."""
        if written := {i.name.fragment for i in installs if i.align is not events.Align.KEEP}:
            self._store.spread(written)
        if installs:
            self.log("debug", "installed " + ", ".join(f"{i.name.fragment}@{i.name.version}" for i in installs))

    def say(self, word: events.Word) -> None:
        """Rank 0 says it."""
        match word:
            case events.Dial():
                self._tell(self._hello(word))
            case events.Tell(message):
                self._tell(message)
            case events.Log(level, text):
                self.log(level, text)
            case _:
                assert_never(word)

    def _perform(self, effect: events.Deed) -> None:
        match effect:
            case events.Bind(plan):
                self._bind(plan)
            case events.Introduce():
                self._introduce(effect)
            case events.ProvideInit(uploads):
                self._provide_init(uploads)
            case events.NameAnchor(name):
                if self._bulk is not None:
                    self._bulk.name_held(name)
            case events.FetchExactly(names):
                if self._bulk is not None:
                    self._bulk.fetch_exactly(names)
            case events.Capture():
                self._capture(effect)
            case events.ForgetUpload(push, arrived):
                self._forget(push, arrived)
            case events.Install():
                pass  # written already
            case _:
                assert_never(effect)

    def _tell(self, message: IslandMessage) -> None:
        if self._control is not None:
            self._control.send(message)

    def log(self, level: str, text: str) -> None:
        """Tell people (rank 0)."""
        if self._control is not None:
            logger.log(logging.getLevelName(level.upper()), "island %d: %s", self._about.island, text)

    def _hello(self, dial: events.Dial) -> Hello:
        about = self._about
        return Hello(
            island=about.island,
            nonce=dial.nonce,
            fingerprint=about.layout.fingerprint,
            host=socket.gethostname(),
            pid=os.getpid(),
            instance=about.instance,
            step=dial.step,
            ranks=about.owners,
            layout=about.layout if dial.with_layout else None,
            running=dial.running,
        )

    def _bind(self, plan: FragmentPlan) -> None:
        self.pieces = PieceMap(self._about.layout, plan, self._about.boxes)
        self._model.bind(self.pieces)
        self.values = AnchorStore(self._model, self.pieces, self._buffers)
        self.values.adopt(self._resumed.anchors_for(plan))
        if self._bulk is not None:
            self._bulk.bind(self.pieces)

    def _introduce(self, effect: events.Introduce) -> None:
        if self._bulk is not None:
            self._store.await_deltas()  # else an upload of the earlier generation might be offered in this one
            granted = Pass(effect.session, effect.generation, effect.token)
            self._bulk.introduce(granted, effect.contract, effect.held, effect.spent)
        if self._control is not None:
            self._control.joined(effect.session, effect.generation)

    @property
    def _store(self) -> AnchorStore:
        if self.values is None:
            raise DilocoError("the fragments are not known yet")  # the session binds before anything else
        return self.values

    def _provide_init(self, uploads: tuple[str, ...]) -> None:
        if self._bulk is not None:
            self._bulk.provides_init()
        for fragment, upload in enumerate(uploads):
            values = self._store.anchor_or_present(fragment)
            if self._bulk is not None and values.size:
                self._bulk.offer(upload, values)

    def _capture(self, effect: events.Capture) -> None:
        def ready(delta: Values) -> None:
            if self._bulk is not None and delta.size:
                self._bulk.offer(effect.push, delta, effect.fragment)

        self._store.capture(effect.fragment, ready, keep=effect.keep)

    def _forget(self, push: str, arrived: bool) -> None:
        self._store.await_deltas()  # else it might be offered after it was forgotten
        values = self._bulk.forget(push, counted=arrived) if self._bulk is not None else None
        if values is not None and arrived:
            self._store.free(values)

    def _install(self, installs: Sequence[events.Install]) -> None:
        arrivals = []
        for install in installs:
            fragment = install.name.fragment
            if install.align is events.Align.ANCHOR or self._bulk is None:
                values = self._store.anchor_or_present(fragment)
            else:
                values = self._bulk.take(install.name)
            arrivals.append(Arrival(fragment, values, install.align, install.alpha))
        self._store.install(arrivals)
