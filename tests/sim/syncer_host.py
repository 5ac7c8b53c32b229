"""The syncer's process in a simulated world: performs the coordinator's effects on numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from swift_diloco.core.messages import IslandMessage, Published, RankWelcome, Refused, ValueName, Welcome
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
from tests.sim.world import Link, World, merged_value

if TYPE_CHECKING:
    from tests.sim.island_host import Life

PROGRESS_S = 1.0
RETRY_S = 0.1


class SyncerHost:
    """See the module. What it finds wrong with an effect is a bug of the coordinator and raises."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.session = world.token()
        self.run = ""
        self.brain = Coordinator(world.plan.settings, session=self.session, tokens=world.token)
        self.links: dict[str, Link] = {}
        self.generations: dict[str, str] = {}
        """Generation to the peer of its control link."""
        self.ranks: dict[str, str] = {}
        """Generation to the peer of its bulk link."""
        self.lives: dict[str, Life] = {}
        """Who is behind a bulk link."""
        self.present: dict[int, ValueName] = {}
        self.values: dict[ValueName, float] = {}
        self.uploads: dict[str, tuple[str, float | None]] = {}
        """Open and complete uploads: generation and value."""
        self.results: dict[int, float] = {}
        self.tape: list[tuple[float, str, dict[str, object]]] = []
        self.talk: list[str] = []
        self.exit: Exit | None = None
        self._wakeup = float("inf")

    # -- Events -------------------------------------------------------------------------------------------------------

    def receive(self, peer: str, message: IslandMessage) -> None:
        self.take(Received(peer, message))

    def lost(self, link: Link) -> None:
        """The syncer sees that a connection is closed."""
        if self.links.pop(link.peer, None) is not None:
            self.take(PeerGone(link.peer))

    def take(self, event: Event) -> None:
        """One event into the brain, its effects performed."""
        effects = self.brain.handle(event, now=self.world.now)
        self.brain.validate()
        for effect in effects:
            self._perform(effect)
        due = self.brain.next_wakeup
        if due is not None and due < self._wakeup:
            self._wakeup = due
            self.world.after(max(0.0, due - self.world.now), self._wake)

    def _wake(self) -> None:
        self._wakeup = float("inf")
        self.take(TimePassed())

    # -- Effects ------------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(peer, message):
                if isinstance(message, Welcome):
                    self.generations[message.generation] = peer
                assert peer.startswith("c") or isinstance(message, RankWelcome | Refused), effect
                if (link := self.links.get(peer)) is not None:
                    self.world.send_down(link, message)
            case RegisterRank(generation, _, _, peer, _):
                self.ranks[generation] = peer
            case ForgetGeneration(generation, _):
                self.generations.pop(generation, None)
                self.ranks.pop(generation, None)
                for upload in [u for u, (g, value) in self.uploads.items() if g == generation and value is None]:
                    del self.uploads[upload]
            case OpenUpload(upload, generation, _, _):
                assert upload not in self.uploads and generation in self.ranks, effect
                self.uploads[upload] = (generation, None)
                self._expect(upload)
            case DropUpload(upload, _):
                del self.uploads[upload]
            case WriteTape(event, fields):
                self.tape.append((self.world.now, event, fields))
            case Log(level, text):
                self.talk.append(f"{self.world.now:9.2f} {level}: {text}")
            case Exit():
                self.exit = effect
            case AdoptLayout():
                pass
            case AdoptInit() | Merge() | Commit() | DiscardMerge():
                self._compute(effect)

    def _compute(self, effect: AdoptInit | Merge | Commit | DiscardMerge) -> None:
        """Effects on values."""
        match effect:
            case AdoptInit(uploads, run):
                self.run = run
                values = [self._taken(upload) for upload in uploads]
                self.world.after(self.world.transfer(), lambda: self._adopt(values))
            case Merge():
                self._merge(effect)
            case Commit(t, name, uploads):
                self._publish(name, self.results.pop(t))
                for upload in uploads:
                    self._taken(upload)
            case DiscardMerge(t, uploads):
                del self.results[t]
                for upload in uploads:
                    self._taken(upload)

    def _merge(self, merge: Merge) -> None:
        given = []
        for part in merge.contributions:
            value = self.uploads[part.upload][1]
            assert value is not None, f"{part.upload} is merged before it is complete"
            given.append((part.weight, value))
        result = merged_value(self.values[self.present[merge.fragment]], given)
        self.results[merge.t] = result
        bad = tuple(p.island for p, (_, v) in zip(merge.contributions, given, strict=True) if not math.isfinite(v))
        seconds = self.world.transfer()
        finished = MergeFinished(merge.t, merge.attempt, repr(result), not bad, bad, seconds)
        self.world.after(seconds, lambda: self.take(finished))

    def _adopt(self, values: list[float]) -> None:
        """The initial values are announced, then told to the brain."""
        names = tuple(ValueName(f, 0, repr(value)) for f, value in enumerate(values))
        for name, value in zip(names, values, strict=True):
            self._publish(name, value)
        self.take(InitAdopted(names))

    def _taken(self, upload: str) -> float:
        """A complete upload, which is free from now on."""
        value = self.uploads.pop(upload)[1]
        assert value is not None, f"{upload} is not complete"
        return value

    def _publish(self, name: ValueName, value: float) -> None:
        """A new present value, announced to every control link; the old one is gone."""
        old = self.present.get(name.fragment)
        assert old is None or name.version > old.version, f"{name} after {old}"
        if old is not None:
            del self.values[old]
        self.present[name.fragment], self.values[name] = name, value
        for generation, peer in self.generations.items():
            if (link := self.links.get(peer)) is not None:
                self.world.send_down(link, Published(self.session, generation, name, self.run))

    # -- Transfers ----------------------------------------------------------------------------------------------------

    def _expect(self, upload: str) -> None:
        """An upload takes its time once its rank has captured it, and tells of its progress."""
        world, seconds = self.world, self.world.transfer()
        fails = world.random.random() < world.plan.failures

        def arrive(left: float) -> None:
            life = self._sender(upload)
            if life is None:
                return
            if upload not in life.captures:
                world.after(RETRY_S, lambda: arrive(left))
            elif left > 0:
                if left < seconds:
                    self.take(UploadProgressed(upload))
                world.after(min(left, PROGRESS_S), lambda: arrive(left - PROGRESS_S))
            elif fails:
                world.note("damaged upload")
                del self.uploads[upload]
                self.take(UploadFailed(upload, "damaged for good"))
            else:
                self.uploads[upload] = (self.uploads[upload][0], life.captures[upload])
                self.take(UploadCompleted(upload, 16))

        arrive(seconds)

    def _sender(self, upload: str) -> Life | None:
        """Who uploads; nobody once the upload is dropped, its generation over or its process dead."""
        if upload not in self.uploads or self.exit is not None:
            return None
        life = self.lives.get(self.ranks.get(self.uploads[upload][0], ""))
        return life if life is not None and life.alive else None

    def fetch(self, name: ValueName, staged: Callable[[float], None], gone: Callable[[], None]) -> None:
        """A rank fetches a value; it may be replaced on the way."""

        def arrive() -> None:
            if (value := self.values.get(name)) is not None and self.exit is None:
                staged(value)
            else:
                gone()

        self.world.after(self.world.transfer(), arrive)
