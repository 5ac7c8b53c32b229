"""An island's processes in a simulated world: the real Session, a trainer that adds noise, ranks with a link each.

What every rank does the same is done once (the design has all ranks run one Session on the same events); what differs
between ranks is when their links carry something: uploads, fetches, reconnects.
"""

from __future__ import annotations

import math
from dataclasses import replace

from swift_diloco.core.formats.messages import (
    Heartbeat,
    Hello,
    IslandMessage,
    RankHello,
    SyncerMessage,
    ValueName,
)
from swift_diloco.core.story.recorder import Story
from swift_diloco.island import events
from swift_diloco.island.brain.session import Session
from swift_diloco.island.brain.stages import Membership, Profile, TrainingStage
from swift_diloco.island.remembered import Remembered
from swift_diloco.simulate.worlds.island_parts import (
    CHECKPOINT_STEPS,
    CONTROL,
    FRESH,
    HEARTBEAT_S,
    POLL_S,
    REDIAL_RANK_S,
    SAVE_S,
    Armed,
    IslandFacts,
    Local,
    Staging,
    TrainerCheckpoint,
)
from swift_diloco.simulate.worlds.plans import IslandPlan
from swift_diloco.simulate.worlds.truth import Captured, Learned
from swift_diloco.simulate.worlds.world import Link


class Life:
    """One life of an island, from the start of its processes to their end."""

    def __init__(self, facts: IslandFacts, island: int, loaded: TrainerCheckpoint = FRESH) -> None:
        self.facts, self.island, self.step = facts, island, loaded.step
        self.checkpoint = loaded
        self.world, self.syncer = facts.world, facts.syncer
        self.me: IslandPlan = facts.plan.islands[island]
        self.token = self.world.token()
        self.session = Session(Profile(island, self.token, loaded.step), loaded.remembered)
        self.story = Story(f"island-{island}", self.session)
        self.alive, self.finished = True, False
        self.failure = ""
        self.locals = [replace(local) for local in loaded.locals]
        self.captures: dict[str, Learned] = {}
        self.staging: dict[ValueName, Staging] = {}
        self.inbox: list[SyncerMessage | None] = []
        self.armed = Armed()
        self.crashed_at_install = False
        self._granted: tuple[str, str, str] | None = None
        self._training = self._ending = self._saving = False
        self._dials = 0
        self.control = self._connect(CONTROL)
        self.bulk = [self._connect(rank) for rank in range(self.me.ranks)]
        self._feed(events.Started())
        self._tick()
        self._beat()

    # -- Links --------------------------------------------------------------------------------------------------------

    def _connect(self, rank: int) -> Link:
        """A new socket with a routing id that was never used."""
        self._dials += 1
        kind = "c" if rank == CONTROL else f"b{rank}."
        peer = f"{kind}{self.island}-{self.token}-{self._dials}"
        hear = self._hear if rank == CONTROL else _deaf
        link = Link(peer, self.island, rank, self.syncer.receive, hear)
        self.syncer.links[peer] = link
        if rank != CONTROL:
            self.syncer.lives[peer] = self
        return link

    def _hear(self, message: SyncerMessage) -> None:
        if self.alive:
            self.inbox.append(message)

    def cut(self, told_after_s: float) -> None:
        """The control link breaks; the island dials again at once, the syncer hears of it later."""
        self._close(self.control, told_after_s)
        self.control = self._connect(CONTROL)
        self.inbox.append(None)

    def syncer_died(self) -> None:
        """Every connection breaks; all are dialed again at once and find nobody for a while."""
        for link in (self.control, *self.bulk):
            link.closed = True
        self.control = self._connect(CONTROL)
        self.inbox.append(None)
        for rank in range(self.me.ranks):
            self.world.after(REDIAL_RANK_S, lambda rank=rank: self._redial(rank))  # type: ignore[misc]

    def replay(self, told_after_s: float) -> None:
        """The control link breaks, and what it last carried arrives again over another connection."""
        again = list(self.control.sent)
        self.cut(told_after_s)
        ghost = self._connect(CONTROL)
        ghost.to_island = _deaf
        for message in again:
            self.world.send_up(ghost, message)

    def cut_rank(self, rank: int, seconds: float) -> None:
        """A bulk link breaks; its rank dials again under the same generation."""
        self._close(self.bulk[rank], 0.0)
        self.world.after(REDIAL_RANK_S + seconds, lambda: self._redial(rank))

    def _redial(self, rank: int) -> None:
        if self.alive:
            self.bulk[rank] = self._connect(rank)
            self._introduce(rank)

    def _close(self, link: Link, told_after_s: float) -> None:
        link.closed = True
        self.world.after(told_after_s + self.world.delay(), lambda: self.syncer.lost(link))

    def _introduce(self, rank: int) -> None:
        if self._granted is not None:
            session, generation, token = self._granted
            hello = RankHello(session, generation, token, rank, self.facts.boxes[rank])
            self.world.send_up(self.bulk[rank], hello)

    def kill(self, *, silently: bool) -> None:
        """The processes are gone at once. What they had sent may still arrive."""
        self.alive = False
        if silently:
            return
        for link in (self.control, *self.bulk):
            self.world.after(2 * self.world.delay_s, lambda link=link: self.syncer.lost(link))  # type: ignore[misc]

    # -- The trainer --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """A step boundary, or a look while there is nothing to train."""
        if not self.alive:
            return
        if (wait := self.armed.stalled_until - self.world.now) > 0:
            self.world.after(wait, self._tick)
            return
        if self._training:
            self._train()
        self._boundary()
        if self._training and self.step % CHECKPOINT_STEPS == 0:
            self._save()
        if self.session.stage is TrainingStage.TRAINING and self.step >= self.facts.plan.steps and not self._ending:
            self._end()
        if self.session.stage is TrainingStage.FINISHED and not self._saving:
            self._saving = True
            self.world.after(SAVE_S, self._saved)
        self._training = not self._ending and self.session.may_train(self.world.now)
        pace = self.me.step_s * self.world.random.uniform(0.8, 1.2)
        self.world.after(pace if self._training else POLL_S, self._tick)

    def _train(self) -> None:
        """One local step; now and then the optimizer skips its update."""
        random = self.world.random
        self.step += 1
        updated = random.random() >= self.facts.plan.skipped
        unit = (self.island, self.token, self.step)
        for local in self.locals if updated else ():
            local.value += random.gauss(0.0, 1.0)
            local.units |= {unit}
            local.since_capture |= {unit}
        self._feed(events.StepEnded(self.step, updated, random.randint(1, 100)))

    def _save(self) -> None:
        """The trainer's checkpoint, with the record beside it, unless this boundary was the last of these processes."""
        if not self.alive:
            return
        holdings, plan = self.session.holdings, self.facts.plan
        remembered = None
        if plan.records and holdings.plan is not None:
            remembered = Remembered(holdings.run, holdings.plan, holdings.records(), plan.save_anchors)
        with_anchors = plan.save_anchors and remembered is not None  # anchors lie beside a record or not at all
        kept = tuple(
            replace(local, anchor=local.anchor if with_anchors else None, since_capture=frozenset())
            for local in self.locals
        )
        self.checkpoint = TrainerCheckpoint(self.step, kept, remembered)

    def _end(self) -> None:
        self._ending = True
        self._feed(events.LastStepReached())

    def _saved(self) -> None:
        """The last save is durable; the processes end by themselves."""
        if self.alive:
            self._feed(events.SaveFinished())
            self.finished = True
            self.kill(silently=False)

    def _boundary(self) -> None:
        for message in self._drained():
            self._feed(events.LinkLost() if message is None else events.Heard(message))
        wanted = self.session.wanted()
        for name in [name for name in self.staging if name not in wanted]:
            del self.staging[name]
        for name in wanted:
            self._want(name)
        ready = tuple(name for name in wanted if not self.staging[name].missing)
        self._feed(events.BoundaryReached(ready))

    def _drained(self) -> list[SyncerMessage | None]:
        messages, self.inbox = self.inbox, []
        return messages

    def _beat(self) -> None:
        """Heartbeats come from a thread of their own, while the process lives."""
        if not self.alive:
            return
        session = self.session
        if session.membership is not Membership.DIALING:
            self._tell(Heartbeat(session.syncer_session, session.generation, self.step))
        self.world.after(HEARTBEAT_S, self._beat)

    # -- Transfers ----------------------------------------------------------------------------------------------------

    def push_s(self, rank: int) -> float:
        """How long this rank's share of an upload takes."""
        return self.world.transfer() * (self.me.slow_rank if rank == self.me.ranks - 1 else 1.0)

    def fetch_s(self, rank: int) -> float:
        """How long this rank's share of a fetch takes."""
        return self.push_s(rank)

    def spend_damage(self) -> bool:
        """Damage the upload that arrives now, if one was to be damaged; says whether."""
        if not self.armed.damage:
            return False
        self.armed.damage -= 1
        self.world.note("damage")
        return True

    def _want(self, name: ValueName) -> None:
        """Every rank that owns a part of the fragment fetches its share; skewed, as their links are."""
        if name not in self.staging:
            self.staging[name] = Staging(set(self.syncer.around.owners(self.island, name.fragment)))
        staging, generation = self.staging[name], self.session.generation
        for rank in sorted(staging.missing - staging.waiting):
            staging.waiting.add(rank)
            seconds = self.fetch_s(rank) * self.world.slowness(self.island, rank)

            def told(value: float | None, rank: int = rank) -> None:
                staging.waiting.discard(rank)
                if value is not None and self.session.generation == generation:
                    staging.value = value
                    staging.missing.discard(rank)

            self.syncer.fetch(name, (generation, rank), seconds, told)

    # -- Effects ------------------------------------------------------------------------------------------------------

    def _feed(self, event: events.Event) -> None:
        if not self.alive:
            return
        effects = self.story.handle(event, now=self.world.now)
        if self.world.checked:
            self.session.validate()
        deeds, words, ends = events.sorted_out(effects)
        for effect in (*deeds, *words, *ends):
            if self.alive:
                self._perform(effect)

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case events.Dial():
                self._tell(self._hello(effect))
            case events.Bind():
                if not self.locals:
                    self.locals = [Local(self.world.random.gauss(0.0, 10.0)) for _ in self.facts.layout.tensors]
            case events.Introduce(session, generation, token, held=held):
                self._granted = (session, generation, token)
                for name in held:
                    self._check_held(name)
                self.staging.clear()
                self.captures.clear()
                for rank in range(self.me.ranks):
                    self._introduce(rank)
            case events.Tell(message):
                self._tell(message)
            case events.ProvideInit(uploads):
                self._provide(uploads)
            case events.NameAnchor(name):
                self._check_held(name)
            case events.Capture():
                self._capture(effect)
            case events.ForgetUpload(push, _):
                self.captures.pop(push, None)
            case events.Install(name, align, alpha):
                self._install(name, align, alpha)
            case events.StopTraining(final=True):
                self._end()
            case events.Fail(reason) | events.Abort(reason):
                self.failure = reason
                self.kill(silently=False)
            case events.SeekSyncer():
                pass  # the world starts its syncer again by itself
            case events.Log(level, text):
                self.world.say(f"island {self.island} {level}: {text}")
            case _:
                raise AssertionError(f"the simulated island does not know {effect}")

    def _check_held(self, name: ValueName) -> None:
        assert repr(self.locals[name.fragment].anchor) == name.digest, f"{name} is not the anchor here"

    def _hello(self, dial: events.Dial) -> Hello:
        layout = self.facts.layout
        return Hello(
            island=self.island,
            nonce=dial.nonce,
            fingerprint=layout.fingerprint,
            host="host",
            pid=1,
            instance=f"folder-{self.island}",
            step=dial.step,
            ranks=self.me.ranks,
            layout=layout if dial.with_layout else None,
            running=dial.running,
        )

    def _provide(self, uploads: tuple[str, ...]) -> None:
        """Initial values: anchors where they are known, else what is in the model."""
        for fragment, upload in enumerate(uploads):
            local = self.locals[fragment]
            if local.anchor is None:
                local.anchor, local.units = local.value, frozenset()
            self.captures[upload] = Learned(local.anchor, frozenset())

    def _tell(self, message: IslandMessage) -> None:
        self.world.send_up(self.control, message)

    def _capture(self, effect: events.Capture) -> None:
        push, local = effect.push, self.locals[effect.fragment]
        assert local.anchor is not None, f"push {push} has no anchor to be measured from"
        value = local.value - local.anchor
        if self.armed.poison:
            self.armed.poison -= 1
            self.world.note("poison")
            value = math.nan
        self.captures[push] = Learned(value, local.units)
        local.at_capture, local.since_capture = local.value, frozenset()
        self.syncer.history.captured.append(Captured(push, effect.steps, local.units))

    def _install(self, name: ValueName, align: events.Align, alpha: float) -> None:
        local = self.locals[name.fragment]
        if self.armed.install:
            self.armed.install -= 1
            self._fail_together("a rank could not install")
            return
        value = local.anchor if align is events.Align.ANCHOR else self.staging.pop(name).value
        assert value is not None, f"{name} is installed before it is there"
        self.syncer.history.installed.append((self.island, name, value))
        match align:
            case events.Align.OVERWRITE | events.Align.ANCHOR:
                local.value, local.units = value, frozenset()
            case events.Align.BLEND:
                local.value, local.units = alpha * local.value + (1 - alpha) * value, frozenset()
            case events.Align.KEEP:
                pass
            case events.Align.SHIFT:
                assert local.anchor is not None, f"{name} is shifted onto from an unknown anchor"
                local.value = value + (local.value - local.anchor)
            case events.Align.CARRY:
                local.value = value + (local.value - local.at_capture)
                local.units = local.since_capture
        local.anchor = value

    def _fail_together(self, why: str) -> None:
        """A failure on one rank raises on all: the island leaves and its processes end."""
        self.world.note("install")
        self._feed(events.Left(why))
        self.crashed_at_install = True
        self.kill(silently=False)


def _deaf(message: SyncerMessage) -> None:
    """A link nobody listens on, or one that carries only bulk here."""
