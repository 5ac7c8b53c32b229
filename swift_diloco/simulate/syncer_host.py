"""The syncer's process in a simulated world: performs the real coordinator's effects on numbers.

One number per fragment stands for its values; a merge is the weighted mean. What this host finds wrong with an effect
is a bug of the coordinator and raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from swift_diloco.core.messages import IslandMessage, Published, RankWelcome, Refused, ValueName, Welcome
from swift_diloco.core.settings import SyncerSettings
from swift_diloco.simulate.history import Delta, History, Merged, Unit
from swift_diloco.simulate.world import Link, World
from syncer.coordinator import Coordinator
from syncer.events import (
    AdoptInit,
    AdoptLayout,
    Commit,
    DiscardMerge,
    DropUpload,
    Effect,
    Event,
    Exit,
    ForgetGeneration,
    InitAdopted,
    Log,
    Merge,
    MergeFinished,
    OpenUpload,
    PeerGone,
    Received,
    RegisterRank,
    Send,
    TimePassed,
    UploadCompleted,
    UploadFailed,
    UploadProgressed,
    WriteTape,
)

PROGRESS_S = 1.0
"""How often a transfer tells of its progress."""

VALUE_BYTES = 16
"""Bytes of a fragment where its size does not matter."""

RETRY_S = 0.25
"""How often a transfer that cannot go on looks again."""

MakeBrain = Callable[[SyncerSettings, str, Callable[[], str]], Coordinator]


def make_coordinator(settings: SyncerSettings, session: str, tokens: Callable[[], str]) -> Coordinator:
    """The real brain, fresh."""
    return Coordinator(settings, session=session, tokens=tokens)


class Sender(Protocol):
    """What an upload needs of the island's process behind it."""

    island: int
    alive: bool
    captures: dict[str, Delta]

    def push_s(self, rank: int) -> float:
        """How long a rank's share of an upload takes."""
        ...

    def damages(self) -> bool:
        """Whether this upload is one that never arrives undamaged."""
        ...


@dataclass(eq=False)
class Upload:
    """An upload that is open or complete."""

    generation: str
    fragment: int
    missing: set[int]
    """Ranks that have not delivered their share."""
    delta: Delta | None = None


@dataclass(eq=False)
class Generation:
    """What the server knows of one joining of an island."""

    control: str
    ranks: dict[int, str] = field(default_factory=dict)
    """Rank to the peer of its bulk link."""


class SyncerHost:
    """See the module."""

    def __init__(self, world: World, settings: SyncerSettings, history: History, make: MakeBrain | None = None) -> None:
        self.world, self.history = world, history
        self.session = world.token()
        self.brain = (make or make_coordinator)(settings, self.session, world.token)
        self.links: dict[str, Link] = {}
        self.lives: dict[str, Sender] = {}
        """Who is behind a bulk link."""
        self.generations: dict[str, Generation] = {}
        self.present: dict[int, ValueName] = {}
        self.values: dict[ValueName, float] = {}
        self.run = ""
        self.uploads: dict[str, Upload] = {}
        self.results: dict[int, tuple[float, tuple[Merged, ...]]] = {}
        self.exit: Exit | None = None
        self.bytes_pushed = self.bytes_fetched = 0
        self.push_bytes = self.fetch_bytes = VALUE_BYTES
        """Size of a fragment on its way to the syncer and from it."""
        self.owners: Callable[[int, int], tuple[int, ...]] = lambda island, fragment: (0,)
        """Ranks of an island that own a part of a fragment."""
        self.merge_s: Callable[[], float] = world.transfer
        self._wakeup = float("inf")

    # -- Events -------------------------------------------------------------------------------------------------------

    def receive(self, peer: str, message: IslandMessage) -> None:
        """A message arrived."""
        self.take(Received(peer, message))

    def lost(self, link: Link) -> None:
        """The syncer sees that a connection is closed."""
        if self.links.pop(link.peer, None) is not None:
            self.take(PeerGone(link.peer))

    def take(self, event: Event) -> None:
        """One event into the brain, its effects performed."""
        effects = self.brain.handle(event, now=self.world.now)
        if self.world.checked:
            self.brain.validate()
        for effect in effects:
            self._perform(effect)
        self._sleep()

    def _sleep(self) -> None:
        due = self.brain.next_wakeup
        if due is not None and due < self._wakeup:
            self._wakeup = due
            self.world.at(due, lambda: self._wake(due))

    def _wake(self, due: float) -> None:
        if due == self._wakeup:
            self._wakeup = float("inf")
            self.take(TimePassed())

    # -- Effects ------------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(peer, message):
                if isinstance(message, Welcome):
                    self.generations.setdefault(message.generation, Generation(peer)).control = peer
                assert peer.startswith("c") or isinstance(message, RankWelcome | Refused), effect
                if (link := self.links.get(peer)) is not None:
                    self.world.send_down(link, message)
            case RegisterRank(generation, _, rank, peer, _):
                self.generations[generation].ranks[rank] = peer
            case ForgetGeneration(generation, _):
                self._forget(generation)
            case OpenUpload(upload, generation, fragment, _):
                self._open(upload, generation, fragment)
            case DropUpload(upload, _):
                self._end(upload)
            case WriteTape(event, fields):
                self.history.tape.append((event, fields))
            case Log(level, text):
                self.world.say(f"syncer {level}: {text}")
            case Exit():
                self.exit = effect
            case AdoptLayout():
                pass
            case AdoptInit() | Merge() | Commit() | DiscardMerge():
                self._compute(effect)
            case _:
                raise AssertionError(f"the simulated server does not know {effect}")

    def _compute(self, effect: AdoptInit | Merge | Commit | DiscardMerge) -> None:
        """Effects on values."""
        match effect:
            case AdoptInit():
                deltas = [self._taken(upload) for upload in effect.uploads]
                self.run = getattr(effect, "run", "")
                self.world.after(self.merge_s(), lambda: self._adopt([delta.value for delta in deltas]))
            case Merge():
                self._merge(effect)
            case Commit(t, name, uploads):
                value, merged = self.results.pop(t)
                self._publish(name, value)
                self.history.merged += merged
                for upload in uploads:
                    self._end(upload)
            case DiscardMerge(t, uploads):
                del self.results[t]
                for upload in uploads:
                    self._end(upload)

    def _merge(self, merge: Merge) -> None:
        given = [(part, self._delta(part.upload)) for part in merge.contributions]
        present = self.values[self.present[merge.fragment]]
        result = merged_value(present, [(part.weight, delta.value) for part, delta in given])
        parts = tuple(Merged(merge.t, merge.fragment, part.upload, delta.units) for part, delta in given)
        self.results[merge.t] = (result, parts)
        bad = tuple(part.island for part, delta in given if not math.isfinite(delta.value))
        seconds = self.merge_s()
        finished = MergeFinished(merge.t, merge.attempt, repr(result), not bad, bad, seconds)
        self.world.after(seconds, lambda: self.take(finished))

    def _adopt(self, values: list[float]) -> None:
        """The initial values are announced, then told to the brain."""
        names = tuple(ValueName(f, 0, repr(value)) for f, value in enumerate(values))
        for name, value in zip(names, values, strict=True):
            self._publish(name, value)
        self.take(InitAdopted(names))

    def _publish(self, name: ValueName, value: float) -> None:
        """A new present value, announced to every control link; the old one is gone."""
        old = self.present.get(name.fragment)
        if old is not None:
            del self.values[old]
        self.present[name.fragment], self.values[name] = name, value
        self.history.published.append((name, value))
        for generation, known in self.generations.items():
            if (link := self.links.get(known.control)) is not None:
                self.world.send_down(link, Published(self.session, generation, name, self.run))

    # -- Uploads ------------------------------------------------------------------------------------------------------

    def _open(self, upload: str, generation: str, fragment: int) -> None:
        assert upload not in self.uploads and generation in self.generations, f"{upload} is opened twice or for nobody"
        self.history.opened.append(upload)
        ranks = self.generations[generation].ranks
        some = self.lives[next(iter(ranks.values()))]
        owners = self.owners(some.island, fragment)
        self.uploads[upload] = Upload(generation, fragment, set(owners))
        for rank in owners:
            self._carry(upload, rank, some.push_s(rank))

    def _carry(self, upload: str, rank: int, left: float) -> None:
        """A rank's share of an upload goes on, or waits for its capture or its link."""
        entry = self.uploads.get(upload)
        if entry is None or self.exit is not None:
            return
        sender = self.sender(entry.generation, rank)
        if sender is None or upload not in sender.captures:
            self.world.after(RETRY_S, lambda: self._carry(upload, rank, left))
            return
        done = PROGRESS_S / self.world.slowness(sender.island, rank)
        if left > 0:
            self.world.after(min(left, PROGRESS_S), lambda: self._carry(upload, rank, left - done))
            self.take(UploadProgressed(upload))
            return
        self._arrived(upload, entry, rank, sender)

    def _arrived(self, upload: str, entry: Upload, rank: int, sender: Sender) -> None:
        if sender.damages():
            self._end(upload)
            self.take(UploadFailed(upload, "damaged for good"))
            return
        entry.missing.discard(rank)
        if not entry.missing:
            entry.delta = sender.captures[upload]
            self.bytes_pushed += self.push_bytes
            self.take(UploadCompleted(upload, self.push_bytes))

    def sender(self, generation: str, rank: int) -> Sender | None:
        """Who is at the other end of a rank's bulk link; nobody while it is down or nothing passes."""
        known = self.generations.get(generation)
        peer = known.ranks.get(rank) if known is not None else None
        life = self.lives.get(peer) if peer is not None else None
        if life is None or peer not in self.links or not life.alive or not self.world.passes(life.island):
            return None
        return life

    def _forget(self, generation: str) -> None:
        """Its unfinished uploads end with it."""
        self.generations.pop(generation, None)
        for upload in [u for u, each in self.uploads.items() if each.generation == generation and each.delta is None]:
            self._end(upload)

    def _delta(self, upload: str) -> Delta:
        delta = self.uploads[upload].delta
        assert delta is not None, f"{upload} is merged before it is complete"
        return delta

    def _taken(self, upload: str) -> Delta:
        """A complete upload, which is free from now on."""
        delta = self._delta(upload)
        self._end(upload)
        return delta

    def _end(self, upload: str) -> None:
        del self.uploads[upload]
        self.history.ended.append(upload)

    # -- Fetches ------------------------------------------------------------------------------------------------------

    def fetch(self, name: ValueName, place: tuple[str, int], left: float, told: Callable[[float | None], None]) -> None:
        """A rank (generation, rank) fetches a value: told the value, or None when it was replaced or the link ended."""

        def arrive() -> None:
            value = self.values.get(name)
            if value is None or self.exit is not None or self.sender(*place) is None:
                told(None)
                return
            self.bytes_fetched += self.fetch_bytes
            told(value)

        self.world.after(left, arrive)


def merged_value(present: float, contributions: list[tuple[float, float]]) -> float:
    """One outer step with learning rate 1: the present value plus the weighted mean of (weight, delta)."""
    total = math.fsum(weight for weight, _ in contributions)
    return present + math.fsum(weight / total * delta for weight, delta in contributions)


def units_of(parts: tuple[Merged, ...]) -> frozenset[Unit]:
    """What a set of contributions holds."""
    return frozenset(unit for part in parts for unit in part.units)
