"""An island's process in a simulated world: the real Session, a trainer that adds noise, links that break, restarts."""

from __future__ import annotations

import math

from swift_diloco import events
from swift_diloco.core.messages import Heartbeat, Hello, IslandMessage, RankHello, SyncerMessage, ValueName
from swift_diloco.session import Session
from swift_diloco.states import Membership, Profile, Stage
from tests.sim.syncer_host import SyncerHost
from tests.sim.world import Link, World

POLL_S = 0.5
HEARTBEAT_S = 5.0
SAVE_S = 2.0
CHECKPOINT_STEPS = 5


class Life:
    """One process of an island, from its start to its end or death."""

    def __init__(self, world: World, syncer: SyncerHost, island: int, step: int) -> None:
        self.world, self.syncer, self.island, self.step = world, syncer, island, step
        self.token = world.token()
        self.session = Session(Profile(island, self.token))
        self.alive, self.finished = True, False
        self.theta: list[float] = []
        self.anchors: dict[int, float] = {}
        self.captures: dict[str, float] = {}
        self.captured_theta: dict[int, float] = {}
        self.staged: dict[ValueName, float] = {}
        self.inbox: list[SyncerMessage | None] = []
        self.failure = ""
        self._fetching: set[ValueName] = set()
        self._training = self._ending = self._saving = False
        self._dials = 0
        self.control = self._connect("c")
        self.bulk = self._connect("b")
        self._feed(events.Started())
        self._tick()
        self._beat()

    # -- Links --------------------------------------------------------------------------------------------------------

    def _connect(self, kind: str) -> Link:
        """A new socket with a routing id that was never used."""
        self._dials += 1
        peer = f"{kind}{self.island}-{self.token}-{self._dials}"
        link = Link(peer, self.syncer.receive, self._hear if kind == "c" else lambda message: None)
        self.syncer.links[peer] = link
        if kind == "b":
            self.syncer.lives[peer] = self
        return link

    def _hear(self, message: SyncerMessage) -> None:
        if self.alive:
            self.inbox.append(message)

    def cut(self) -> None:
        """The control link breaks; both sides see it, the island dials again."""
        link = self.control
        link.closed = True
        self.world.after(self.world.delay(), lambda: self.syncer.lost(link))
        self.control = self._connect("c")
        self.inbox.append(None)

    def kill(self, *, silently: bool) -> None:
        """The process is gone at once. What it had sent may still arrive."""
        self.alive = False
        for link in (self.control, self.bulk):
            if not silently:
                self.world.after(2 * self.world.plan.delay_s, lambda link=link: self.syncer.lost(link))  # type: ignore[misc]

    # -- The trainer --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """A step boundary, or a look while there is nothing to train."""
        if not self.alive:
            return
        if self._training:
            self.step += 1
            for fragment in range(len(self.theta)):
                self.theta[fragment] += self.world.random.gauss(0.0, 1.0)
            self._feed(events.StepEnded(self.step, True, self.world.random.randint(1, 100)))
        self._boundary()
        if self.session.stage is Stage.TRAINING and self.step >= self.world.plan.steps and not self._ending:
            self._end()
        if self.session.stage is Stage.FINISHED and not self._saving:
            self._saving = True
            self.world.after(SAVE_S, self._saved)
        self._training = not self._ending and self.session.may_train(self.world.now)
        pace = self.world.plan.step_s[self.island] * self.world.random.uniform(0.8, 1.2)
        self.world.after(pace if self._training else POLL_S, self._tick)

    def _end(self) -> None:
        self._ending = True
        self._feed(events.LastStepReached())

    def _saved(self) -> None:
        """The last save is durable; the process ends by itself."""
        if self.alive:
            self._feed(events.SaveFinished())
            self.finished = True
            self.kill(silently=False)

    def _boundary(self) -> None:
        for message in self._drained():
            self._feed(events.LinkLost() if message is None else events.Heard(message))
        wanted = self.session.wanted()
        for name in wanted:
            self._want(name)
        self._feed(events.BoundaryReached(tuple(name for name in wanted if name in self.staged)))

    def _drained(self) -> list[SyncerMessage | None]:
        messages, self.inbox = self.inbox, []
        return messages

    def _want(self, name: ValueName) -> None:
        if name in self.staged or name in self._fetching:
            return
        self._fetching.add(name)

        def arrived(value: float) -> None:
            self._fetching.discard(name)
            self.staged[name] = value

        self.syncer.fetch(name, arrived, lambda: self._fetching.discard(name))

    def _beat(self) -> None:
        """Heartbeats come from a thread of their own, while the process lives."""
        if not self.alive:
            return
        session = self.session
        if session.membership is not Membership.DIALING:
            self._tell(Heartbeat(session.syncer_session, session.generation, self.step))
        self.world.after(HEARTBEAT_S, self._beat)

    # -- Effects ------------------------------------------------------------------------------------------------------

    def _feed(self, event: events.Event) -> None:
        effects = self.session.handle(event, now=self.world.now)
        self.session.validate()
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case events.Dial(nonce, with_layout):
                self._tell(self._hello(nonce, with_layout))
            case events.Bind():
                self.theta = self.theta or [self.world.random.gauss(0.0, 10.0) for _ in self.world.boxes]
            case events.Introduce(session, generation, token):
                hello = RankHello(session, generation, token, 0, self.world.boxes)
                self.world.send_up(self.bulk, hello)
            case events.Tell(message):
                self._tell(message)
            case events.ProvideInit(uploads):
                for fragment, upload in enumerate(uploads):
                    self.captures[upload] = self.anchors[fragment] = self.theta[fragment]
            case events.NameAnchor(name):
                assert repr(self.anchors[name.fragment]) == name.digest
            case events.Capture(push, fragment):
                self._capture(push, fragment)
            case events.ForgetUpload(push, _):
                self.captures.pop(push, None)
            case events.Install(name, align, alpha):
                self._install(name, align, alpha)
            case events.StopTraining():
                self._end()
            case events.Fail(reason):
                self.failure = reason
                self.kill(silently=False)
            case events.Log() | events.SaveNow() | events.Abort():
                pass

    def _hello(self, nonce: str, with_layout: bool) -> Hello:
        layout = self.world.layout
        return Hello(
            island=self.island,
            nonce=nonce,
            fingerprint=layout.fingerprint,
            host="host",
            pid=1,
            instance=f"folder-{self.island}",
            step=self.step,
            ranks=1,
            layout=layout if with_layout else None,
            running=self.session.stage is not Stage.WAITING_FOR_CUT,
        )

    def _tell(self, message: IslandMessage) -> None:
        self.world.send_up(self.control, message)

    def _capture(self, push: str, fragment: int) -> None:
        delta = self.theta[fragment] - self.anchors[fragment]
        if self.world.random.random() < self.world.plan.poison:
            self.world.note("poisoned delta")
            delta = math.nan
        self.captures[push], self.captured_theta[fragment] = delta, self.theta[fragment]

    def _install(self, name: ValueName, align: events.Align, alpha: float) -> None:
        fragment = name.fragment
        value = self.anchors[fragment] if align is events.Align.ANCHOR else self.staged.pop(name)
        assert repr(value) == name.digest, f"{name} is not what was published"
        local = self.theta[fragment]
        match align:
            case events.Align.OVERWRITE | events.Align.ANCHOR:
                local = value
            case events.Align.KEEP:
                pass
            case events.Align.BLEND:
                local = alpha * local + (1 - alpha) * value
            case events.Align.SHIFT:
                local = value + (local - self.anchors[fragment])
            case events.Align.CARRY:
                local = value + (local - self.captured_theta[fragment])
        self.theta[fragment] = local
        self.anchors[fragment] = value

    @property
    def checkpoint_step(self) -> int:
        """Where a restart of this island goes on."""
        return self.step - self.step % CHECKPOINT_STEPS
