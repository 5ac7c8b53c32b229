"""The syncer's process in a simulated world: performs the real coordinator's effects on numbers.

One number per fragment stands for its values; a merge is the weighted mean. What this host finds wrong with an effect
is a bug of the coordinator and raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

from swift_diloco.core.formats.messages import IslandMessage, Published, RankWelcome, Refused, ValueName, Welcome
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import Layout
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.core.story.recorder import Draws, Story
from swift_diloco.simulate.worlds.disk import Disk
from swift_diloco.simulate.worlds.syncer_parts import (
    PROGRESS_S,
    RETRY_S,
    Generation,
    Sender,
    Surroundings,
    Upload,
    merged_value,
)
from swift_diloco.simulate.worlds.truth import History, Learned, Merged
from swift_diloco.simulate.worlds.world import Link, World
from syncer.events import (
    AdoptInit,
    AdoptLayout,
    AnnounceAll,
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
    Restored,
    Send,
    StopRequested,
    TimePassed,
    UploadCompleted,
    UploadFailed,
    UploadProgressed,
    WriteCheckpoint,
    WriteFirst,
    WriteTape,
)


class SyncerHost:
    """The shell of one simulated syncer."""

    def __init__(self, world: World, settings: SyncerSettings, history: History, around: Surroundings) -> None:
        self.world, self.history, self.settings = world, history, settings
        self.around = around
        self._merge_s = around.merge_s or world.transfer
        self.session = world.token()
        self.brain = around.make(settings, self.session, Draws(world.token))
        self.story = Story("syncer", self.brain)
        self.disk = Disk(world, history)
        self.down = False
        self._life = 0
        self._crash_in: int | None = None
        """Effects that are still performed before the process dies."""
        self._crash_s = 0.0
        self._stop_s: float | None = None
        """How long after a graceful stop the process is started again."""
        self._backlog: list[tuple[str, IslandMessage]] = []
        """What was sent while nobody listened: ZeroMQ delivers it to the next process."""
        self._shape: tuple[Layout, FragmentPlan] | None = None
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
        self.announced = 0
        """The newest version that anybody has heard of."""
        self.bytes_pushed = self.bytes_fetched = 0
        self._wakeup = float("inf")

    # -- Events -------------------------------------------------------------------------------------------------------

    def receive(self, peer: str, message: IslandMessage) -> None:
        """A message arrived."""
        if self.down:
            self._backlog.append((peer, message))
            return
        self.take(Received(peer, message))

    def lost(self, link: Link) -> None:
        """The syncer sees that a connection is closed."""
        if self.links.pop(link.peer, None) is not None:
            self.take(PeerGone(link.peer))

    def take(self, event: Event) -> None:
        """One event into the brain, its effects performed."""
        if self.down:
            return
        effects = self.story.handle(event, now=self.world.now)
        if self.world.checked:
            self.brain.validate()
        self._perform_all(effects)

    def _perform_all(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self._crash_in == 0:
                self._die()
                return
            self._crash_in = None if self._crash_in is None else self._crash_in - 1
            self._perform(effect)
        self._sleep()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something if this process still lives then."""
        life = self._life
        self.world.after(seconds, lambda: action() if life == self._life and not self.down else None)

    def _sleep(self) -> None:
        due = self.brain.next_wakeup
        if due is not None and due < self._wakeup:
            self._wakeup = due
            self.later(due - self.world.now, lambda: self._wake(due))

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
            case WriteTape(line):
                self.history.tape.append(line)
            case Log(level, text):
                self.world.say(f"syncer {level}: {text}")
            case Exit(code, finished=finished):
                if self._stop_s is not None and not finished:
                    self.history.stopped(well=code == 0)
                    self._end_process(self._stop_s)
                else:
                    self.exit = effect
            case AdoptLayout(layout, plan):
                self._shape = (layout, plan)
            case AnnounceAll():
                for name in self.present.values():
                    self._announce(name)
            case WriteCheckpoint(number, state):
                assert self._shape is not None
                self.disk.write(self, number, state, self._shape)
            case WriteFirst(fragment):
                self.disk.write_first(fragment)
            case AdoptInit() | Merge() | Commit() | DiscardMerge():
                self._compute(effect)
            case _:
                raise AssertionError(f"the simulated server does not know {effect}")

    def _compute(self, effect: AdoptInit | Merge | Commit | DiscardMerge) -> None:
        """Effects on values."""
        match effect:
            case AdoptInit():
                deltas = [self._taken(upload) for upload in effect.uploads]
                self.run = effect.run
                self.later(self._merge_s(), lambda: self._adopt([d.value for d in deltas], announce=effect.announce))
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
            case _:
                assert_never(effect)

    def _merge(self, merge: Merge) -> None:
        given = [(part, self._delta(part.upload)) for part in merge.contributions]
        present = self.values[self.present[merge.fragment]]
        result = merged_value(present, [(part.weight, delta.value) for part, delta in given])
        parts = tuple(Merged(merge.t, merge.fragment, part.upload, delta.units) for part, delta in given)
        self.results[merge.t] = (result, parts)
        bad = tuple(part.island for part, delta in given if not math.isfinite(delta.value))
        seconds = self._merge_s()
        finished = MergeFinished(merge.t, merge.attempt, repr(result), not bad, bad, seconds)
        self.later(seconds, lambda: self.take(finished))

    def _adopt(self, values: list[float], *, announce: bool) -> None:
        """The initial values are announced, then told to the brain."""
        names = tuple(ValueName(f, 0, repr(value)) for f, value in enumerate(values))
        for name, value in zip(names, values, strict=True):
            self._publish(name, value, announce=announce)
        self.take(InitAdopted(names))

    def _publish(self, name: ValueName, value: float, *, announce: bool = True) -> None:
        """A new present value, announced to every control link; the old one is gone."""
        old = self.present.get(name.fragment)
        if old is not None:
            del self.values[old]
        self.present[name.fragment], self.values[name] = name, value
        self.history.published.append((name, value))
        if announce:
            self._announce(name)

    def _announce(self, name: ValueName) -> None:
        self.announced = name.version
        for generation, known in self.generations.items():
            if (link := self.links.get(known.control)) is not None:
                self.world.send_down(link, Published(self.session, generation, name, self.run))

    # -- Uploads ------------------------------------------------------------------------------------------------------

    def _open(self, upload: str, generation: str, fragment: int) -> None:
        assert upload not in self.uploads and generation in self.generations, f"{upload} is opened twice or for nobody"
        self.history.opened.append(f"{self._life}:{upload}")
        ranks = self.generations[generation].ranks
        some = self.lives[next(iter(ranks.values()))]
        owners = self.around.owners(some.island, fragment)
        self.uploads[upload] = Upload(generation, fragment, set(owners))
        for rank in owners:
            self._carry(upload, rank, some.push_s(rank))

    def _carry(self, upload: str, rank: int, left: float) -> None:
        """A rank's share of an upload goes on, or waits for its capture or its link."""
        entry = self.uploads.get(upload)
        if entry is None or self.exit is not None or self.down:
            return
        sender = self.sender(entry.generation, rank)
        if sender is None or upload not in sender.captures:
            self.later(RETRY_S, lambda: self._carry(upload, rank, left))
            return
        done = PROGRESS_S / self.world.slowness(sender.island, rank)
        if left > 0:
            self.later(min(left, PROGRESS_S), lambda: self._carry(upload, rank, left - done))
            self.take(UploadProgressed(upload))
            return
        self._arrived(upload, entry, rank, sender)

    def _arrived(self, upload: str, entry: Upload, rank: int, sender: Sender) -> None:
        if sender.spend_damage():
            self._end(upload)
            self.take(UploadFailed(upload, "damaged for good"))
            return
        entry.missing.discard(rank)
        if not entry.missing:
            entry.delta = sender.captures[upload]
            self.bytes_pushed += self.around.push_bytes
            self.take(UploadCompleted(upload, self.around.push_bytes))

    def sender(self, generation: str, rank: int) -> Sender | None:
        """Who is at the other end of a rank's bulk link; nobody while it is down or nothing passes."""
        known = self.generations.get(generation)
        peer = known.ranks.get(rank) if known is not None else None
        life = self.lives.get(peer) if peer is not None else None
        if self.down or life is None or peer not in self.links or not life.alive or not self.world.passes(life.island):
            return None
        return life

    def _forget(self, generation: str) -> None:
        """Its unfinished uploads end with it."""
        self.generations.pop(generation, None)
        for upload in [u for u, each in self.uploads.items() if each.generation == generation and each.delta is None]:
            self._end(upload)

    def _delta(self, upload: str) -> Learned:
        delta = self.uploads[upload].delta
        assert delta is not None, f"{upload} is merged before it is complete"
        return delta

    def _taken(self, upload: str) -> Learned:
        """A complete upload, which is free from now on."""
        delta = self._delta(upload)
        self._end(upload)
        return delta

    def _end(self, upload: str) -> None:
        del self.uploads[upload]
        self.history.ended.append(f"{self._life}:{upload}")

    # -- Checkpoints and crashes --------------------------------------------------------------------------------------

    def value_of(self, name: ValueName) -> float:
        """A value that is present, or the result of a merge that waits for its commit."""
        if name in self.values:
            return self.values[name]
        assert name.version in self.results, f"{name} was replaced before it was written"
        return self.results[name.version][0]

    def delta_of(self, push: str) -> Learned:
        """A push that is held."""
        return self._delta(push)

    def crash(self, effects: int, seconds: float) -> None:
        """The process dies while it performs what it decides next, and is back later."""
        self._crash_in, self._crash_s = effects, seconds

    def _die(self) -> None:
        self.world.note("crash")
        self._end_process(self._crash_s)

    def stop(self, seconds: float) -> None:
        """The process is told to stop, and started again after it has ended."""
        self._stop_s = seconds
        self.take(StopRequested())

    def _end_process(self, back_after_s: float) -> None:
        self.down, self._crash_in, self._stop_s = True, None, None
        for upload in list(self.uploads):
            self._end(upload)
        self._life += 1
        self.results.clear()
        self.generations.clear()
        self.links.clear()
        self._wakeup = float("inf")
        self.world.after(back_after_s, self._revive)
        self.around.crashed()

    def _revive(self) -> None:
        """A new process goes on from the newest whole checkpoint."""
        self.down, self.session = False, self.world.token()
        self.brain = self.around.make(self.settings, self.session, Draws(self.world.token))
        self.story = Story("syncer", self.brain)
        self.present.clear()
        self.values.clear()
        image = self.disk.newest
        self.history.rewound(image.state.step if image is not None else 0)
        if image is not None:
            self.run, self._shape = image.state.run, (image.layout, image.plan)
            self.values.update(image.values)
            self.present.update({name.fragment: name for name in image.values})
            self.history.published += image.values.items()
            for push in image.state.carried:
                self.uploads[push.push] = Upload(push.generation, push.fragment, set(), image.carried[push.push])
                self.history.opened.append(f"{self._life}:{push.push}")
            self.history.resumed.append((image.state.step, self._promised()))
            self.take(Restored(image.state, image.layout, image.plan))
        backlog, self._backlog = self._backlog, []
        for peer, message in backlog:
            if peer in self.links:
                self.receive(peer, message)

    def _promised(self) -> int:
        """The outer step that no crash may take back: what a checkpoint holds or (durable publish) anybody heard of."""
        if not self.settings.durable_publish:
            return self.history.durable
        return max(self.history.durable, self.announced)

    # -- Fetches ------------------------------------------------------------------------------------------------------

    def fetch(self, name: ValueName, place: tuple[str, int], left: float, told: Callable[[float | None], None]) -> None:
        """A rank (generation, rank) fetches a value: told the value, or None when it was replaced or the link ended."""

        def arrive() -> None:
            value = self.values.get(name)
            if value is None or self.exit is not None or self.sender(*place) is None:
                told(None)
                return
            self.bytes_fetched += self.around.fetch_bytes
            told(value)

        self.world.after(left, arrive)
