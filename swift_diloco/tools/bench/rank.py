"""An island of one rank without a trainer: the real session and links around values that nobody keeps.

What it pushes is one constant buffer, what it fetches is dropped once it is complete, so that many of them fit into one
machine. It notes when things came over its links.

Invariant: everything but the links' own work happens in `turn`, on the caller's thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch

from swift_diloco.core.errors import DilocoError
from swift_diloco.core.formats.frames import Buffer, decode_header
from swift_diloco.core.formats.messages import PushAnswer
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout, TensorSpec, make_layout
from swift_diloco.island import events
from swift_diloco.island.brain.session import Session
from swift_diloco.island.brain.stages import Profile
from swift_diloco.island.files.record import NOTHING_RESUMED
from swift_diloco.island.links.bulk_link import BulkLink
from swift_diloco.island.links.control_link import ControlLink
from swift_diloco.island.numbers.anchor_store import AnchorStore, Arrival
from swift_diloco.island.numbers.host_buffers import HostBuffers, Values
from swift_diloco.island.performer import Introduction, Links, Performer

STEP_TOKENS = 1
NOTES_MAX = 100_000
"""Notes of one kind that are kept: hours of a bench."""

PIECE_FRAMES = 3
"""Frames of a message with a payload."""


def even_layout(elements: int, fragments: int) -> Layout:
    """As many equal tensors as fragments, so that each fragment is one of them."""
    rows = max(1, elements // fragments // 1024)
    return make_layout(TensorSpec(f"decoder.layers.{i}.weight", (rows, 1024), "rda") for i in range(fragments))


class NoModel:
    """`ModelPieces` of the whole layout whose values are nowhere."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def specs(self) -> Sequence[TensorSpec]:
        return self._layout.tensors

    def boxes(self, layout: Layout) -> tuple[Box, ...]:
        return tuple(Box(i, (0,) * len(spec.shape), spec.shape) for i, spec in enumerate(layout.tensors))

    def bind(self, pieces: PieceMap) -> None:
        """There is nothing to learn."""

    def read(self, fragment: int, out: torch.Tensor) -> None:
        out.fill_(1.0)

    def write(self, values: Mapping[int, torch.Tensor]) -> None:
        """They go nowhere."""

    def spread(self, fragments: Collection[int]) -> None:
        """There is no other rank."""


class ForgetfulStore(AnchorStore):
    """Anchors and deltas that are all the same buffer; counts what it installs."""

    def __init__(self, model: NoModel, pieces: PieceMap, buffers: HostBuffers, notes: Notes) -> None:
        super().__init__(model, pieces, buffers)
        self._own_pieces, self._own_buffers, self._notes = pieces, buffers, notes
        self._shared = np.full(max(pieces.elements(f) for f in range(len(pieces.plan))), 1e-6, np.float32)

    def anchor_or_present(self, fragment: int) -> Values:
        return self._shared[: self._own_pieces.elements(fragment)]

    def capture(self, fragment: int, ready: Callable[[Values], None], *, keep: bool = False) -> None:
        self._notes.captured.append(time.perf_counter())
        ready(self.anchor_or_present(fragment))

    def free(self, values: Values) -> None:
        """It is the shared buffer."""

    def install(self, arrivals: Sequence[Arrival]) -> None:
        now = time.perf_counter()
        for arrival in arrivals:
            self._notes.installed.append(now)
            if not np.shares_memory(arrival.values, self._shared):
                self._own_buffers.give(arrival.values)


def _notes() -> deque[float]:
    return deque(maxlen=NOTES_MAX)


@dataclass
class Notes:
    """When things happened, on the clock of `perf_counter` (s), and how long they took."""

    captured: deque[float] = field(default_factory=_notes)
    installed: deque[float] = field(default_factory=_notes)
    answered: deque[float] = field(default_factory=_notes)
    """Pushes that the syncer has in full."""
    fetch_s: deque[float] = field(default_factory=_notes)
    """From the news of a value to its last piece, where it comes alone."""


class TimedControl(ControlLink):
    """Notes answers to pushes."""

    def __init__(self, dial: DialTarget, notes: Notes) -> None:
        super().__init__(dial.control, heartbeat_s=dial.heartbeat_s, stall_s=0.0)
        self._notes = notes

    def _on_frames(self, parts: Sequence[Buffer]) -> None:
        if isinstance(decode_header(parts[1]), PushAnswer):
            self._notes.answered.append(time.perf_counter())
        super()._on_frames(parts)


class TimedBulk(BulkLink):
    """Notes how long fetches take, where one value at a time is fetched: `payload_bytes` is the size of each."""

    def __init__(self, address: str, buffers: HostBuffers, payload_bytes: int, notes: Notes) -> None:
        super().__init__(address, 0, buffers)
        self._payload_bytes = payload_bytes
        self._notes = notes
        self._told_at = self._begun_at = 0.0

    def _on_frames(self, parts: Sequence[Buffer]) -> None:
        if len(parts) < PIECE_FRAMES:
            self._told_at = time.perf_counter()
            super()._on_frames(parts)
            return
        before = self.traffic.fetched_bytes
        if before % self._payload_bytes == 0:
            self._begun_at = self._told_at
        super()._on_frames(parts)
        if self.traffic.fetched_bytes % self._payload_bytes == 0 and self.traffic.fetched_bytes > before:
            self._notes.fetch_s.append(time.perf_counter() - self._begun_at)


class _Performer(Performer):
    """Performs with anchors that nobody keeps."""

    def __init__(self, model: NoModel, links: Links, about: Introduction, notes: Notes) -> None:
        super().__init__(model, links, about, NOTHING_RESUMED)
        self._no_model, self._links, self._notes = model, links, notes

    def _bind(self, plan: FragmentPlan) -> None:
        super()._bind(plan)
        assert self.pieces is not None
        self.values = ForgetfulStore(self._no_model, self.pieces, self._links.buffers, self._notes)


@dataclass(frozen=True)
class DialTarget:
    """Where an island connects to, and how often it beats."""

    control: str
    bulk: str
    heartbeat_s: float = 1.0


class Rank:
    """One such island."""

    def __init__(self, dial: DialTarget, island: int, layout: Layout) -> None:
        self.notes = Notes()
        self.island = island
        model, buffers = NoModel(layout), HostBuffers()
        boxes = model.boxes(layout)
        self.fragment_bytes = 4 * layout.tensors[0].elements
        self.control = self.control_to(dial)
        self.bulk = TimedBulk(dial.bulk, buffers, self.fragment_bytes, self.notes)
        self.session = Session(Profile(island=island, life=f"bench-{island}"))
        about = Introduction(island, f"bench-{island}", layout, boxes, 1)
        self._performer = _Performer(model, Links(self.control, self.bulk, buffers), about, self.notes)
        self._step = 0

    def __enter__(self) -> Self:
        self.control.start()
        self.bulk.start()
        self._feed(events.Started())
        return self

    def __exit__(self, *_: object) -> None:
        self.bulk.close()
        self.control.close()

    def control_to(self, dial: DialTarget) -> TimedControl:
        """The control link of this kind of island."""
        return TimedControl(dial, self.notes)

    @property
    def has_cut(self) -> bool:
        """Whether every fragment was installed once."""
        return bool(self.session.anchors) and all(anchor.name is not None for anchor in self.session.anchors)

    def turn(self, wait_s: float, *, trained: bool) -> None:
        """One boundary, `wait_s` after the last at the latest; `trained` counts a step before it."""
        self.control.wait(wait_s)
        self._performer.check()
        for item in self.control.drain():
            self._feed(events.LinkLost() if item is None else events.Heard(decode_header(item)))
        if trained:
            self._step += 1
            self._feed(events.StepEnded(self._step, True, STEP_TOKENS))
        wanted = self.session.wanted()
        here = self._performer.reserve(wanted)
        self._feed(events.BoundaryReached(tuple(name for name, staged in zip(wanted, here, strict=True) if staged)))

    def _feed(self, event: events.Event) -> None:
        effects = self.session.handle(event, now=time.monotonic())
        deeds, words, ends = events.sorted_out(effects)
        self._performer.perform(deeds)
        self._performer.spread(events.installs_of(deeds))
        for word in words:
            self._performer.say(word)
        for end in ends:
            if isinstance(end, events.Fail | events.Abort):
                raise DilocoError(f"island {self.island}: {end.reason}")
