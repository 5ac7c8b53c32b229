"""The island's brain: when to dial, install, push, pause and finish.

A pure state machine: every rank of an island runs the same `Session` on the same events (what rank 0's control link
heard,
rank 0's clock, and facts the ranks agreed on), so all ranks come to the same effects at the same step boundary. It
holds
names, versions and counters, never tensors, and knows neither sockets nor the trainer.

At a boundary the shell feeds, in this order (design rule "boundary order"): `StepEnded`, what was heard,
`BoundaryReached`.

Invariants (`validate`): one unsettled push per fragment; a pull is answered only from an anchor that is not spent and
not
about to be replaced; once finished, nothing is offered.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from swift_diloco.anchors import Anchor
from swift_diloco.core.layout import FragmentPlan
from swift_diloco.core.messages import (
    BudgetReached,
    Contract,
    CutInstalled,
    Done,
    Dropped,
    FinalCut,
    HeartbeatReply,
    InitWanted,
    Joined,
    LayoutWanted,
    Outcome,
    Paused,
    Published,
    Pull,
    PullClosed,
    PushAnswer,
    PushOffer,
    Refused,
    Resumed,
    Saved,
    Stopping,
    SyncerMessage,
    Unknown,
    ValueName,
    Welcome,
)
from swift_diloco.events import (
    Align,
    Bind,
    BoundaryReached,
    Capture,
    Dial,
    Effect,
    Event,
    Fail,
    ForgetUpload,
    Heard,
    Install,
    Introduce,
    LastStepReached,
    LinkLost,
    Log,
    NameAnchor,
    ProvideInit,
    SaveFinished,
    Started,
    StepEnded,
    StopTraining,
    Tell,
)

REDIAL_S = 2.0
"""A Hello without answer is said again after this long; the syncer may just be starting."""

REFUSED_REDIAL_S = 15.0
"""After a refusal that time may heal (an older life of this island still holds its place)."""


class Membership(Enum):
    """Where the island stands with the syncer."""

    DIALING = "dialing"
    """Said Hello, not welcomed yet."""
    JOINING = "joining"
    """Welcomed; its ranks introduce themselves."""
    MEMBER = "member"
    """All boxes tile the layout: pulls may come."""


class Stage(Enum):
    """Where the island's training stands."""

    WAITING_FOR_CUT = "waiting for the initial values"
    TRAINING = "training"
    DONE = "done, waiting for the final cut"
    FINISHED = "finished"


class Session:
    """See the module. `life` is a random token of this process, the same on all ranks of the island."""

    def __init__(self, *, island: int, life: str, wait_for_cut: bool = True, heartbeats: bool = True) -> None:
        self.island = island
        self.life = life
        self.heartbeats = heartbeats
        self.membership = Membership.DIALING
        self.stage = Stage.WAITING_FOR_CUT if wait_for_cut else Stage.TRAINING
        self.syncer_session = ""
        self.generation = ""
        self.contract = Contract()
        self.plan: FragmentPlan | None = None
        self.anchors: list[Anchor] = []
        self.pending: dict[int, ValueName] = {}
        self.final: tuple[ValueName, ...] | None = None
        self.paused: Paused | None = None
        self.syncer_says = ""
        self.last_heard_at = 0.0
        self.step = 0
        self._pulls: dict[int, Pull] = {}
        self._met_at_redial: set[int] = set()
        self._final_written: set[int] = set()
        self._providing_init = False
        self._dials = 0
        self._pushes = 0
        self._redial_at: float | None = None
        self._stop_reason: str | None = None
        self._heard: dict[type, Callable[[Any, float], list[Effect]]] = {
            LayoutWanted: self._layout_wanted,
            Welcome: self._welcomed,
            Refused: self._refused,
            Unknown: self._unknown,
            Joined: self._joined,
            InitWanted: self._init_wanted,
            Published: self._published,
            Pull: self._pulled,
            PullClosed: self._pull_closed,
            PushAnswer: self._push_answered,
            Dropped: self._dropped,
            Paused: self._was_paused,
            Resumed: self._was_resumed,
            HeartbeatReply: self._heartbeat_answered,
            BudgetReached: self._budget_reached,
            FinalCut: self._final_cut,
            Stopping: self._syncer_stopping,
        }

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def next_wakeup(self) -> float | None:
        """When a boundary has something to do even though nothing was heard."""
        return self._redial_at if self.membership is Membership.DIALING else None

    def may_train(self, now: float) -> bool:
        """Whether the trainer may take a step: values are there, and no living syncer has paused the run."""
        if self.stage is not Stage.TRAINING:
            return False
        return self.paused is None or now - self.last_heard_at > self.contract.island_lease_s

    def wanted(self) -> tuple[ValueName, ...]:
        """Values to install as soon as every rank has staged them, in fragment order."""
        return tuple(self.pending[fragment] for fragment in sorted(self.pending))

    def waiting_for(self) -> str:
        """For whom the island waits, in words; empty when it does not."""
        if self.membership is Membership.DIALING:
            return "the syncer to answer" + (f" ({self.syncer_says})" if self.syncer_says else "")
        if self.membership is Membership.JOINING:
            return "the syncer to take in all ranks"
        if self.stage is Stage.WAITING_FOR_CUT:
            missing = sum(1 for anchor in self.anchors if anchor.name is None)
            says = f"; the syncer waits for {self.syncer_says}" if self.syncer_says else ""
            return f"initial values of {missing} of {len(self.anchors)} fragments{says}"
        if self.paused is not None:
            return f"{self.paused.missing} more island(s): {self.paused.reason}"
        if self.stage is Stage.DONE:
            what = f"{len(self.pending)} fragments of the final cut" if self.final else "the final cut"
            return what + (f"; the syncer waits for {self.syncer_says}" if self.syncer_says else "")
        return ""

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for fragment, anchor in enumerate(self.anchors):
            anchor.validate()
            assert self.pending.get(fragment) is None or self.pending[fragment].fragment == fragment
        assert self.plan is None or len(self.anchors) == len(self.plan)
        assert self.stage is not Stage.FINISHED or not self.pending

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one event; returns what the shell must do, in order."""
        match event:
            case Heard(message):
                return self._on_heard(message, now)
            case StepEnded(step, trained, tokens):
                self.step = step
                for anchor in self.anchors if trained else ():
                    anchor.count(tokens)
                return []
            case BoundaryReached(staged):
                return self._at_boundary(staged, now)
            case Started():
                self.last_heard_at = now
                return self._dial(now)
            case LinkLost():
                return self._lost("the link to the syncer broke", now)
            case LastStepReached():
                return self._reached_last_step()
            case SaveFinished():
                return [Tell(Saved(self.syncer_session, self.generation))]

    def _on_heard(self, message: SyncerMessage, now: float) -> list[Effect]:
        handler = self._heard.get(type(message))
        if handler is None or not self._is_for_us(message):
            return []
        self.last_heard_at = now
        return handler(message, now)

    def _is_for_us(self, message: SyncerMessage) -> bool:
        """Answers to a dial repeat its nonce; everything else must bear the present session and generation."""
        if isinstance(message, Welcome | LayoutWanted | Refused) and message.nonce:
            return message.nonce == self._nonce()
        if isinstance(message, Refused):
            return message.session in ("", self.syncer_session)
        if isinstance(message, Unknown):
            return message.generation == self.generation
        return (
            not isinstance(message, Welcome | LayoutWanted)
            and message.session == self.syncer_session
            and message.generation == self.generation
        )

    # -- joining -------------------------------------------------------------------------------------------------------

    def _nonce(self) -> str:
        return f"{self.life}.{self._dials}"

    def _dial(self, now: float, *, with_layout: bool = False) -> list[Effect]:
        self._dials += 1
        self.membership = Membership.DIALING
        self._redial_at = now + REDIAL_S
        return [Dial(self._nonce(), with_layout)]

    def _lost(self, why: str, now: float) -> list[Effect]:
        """The generation is over: what it had under way is void, what it holds (anchors, counters) stays."""
        was_member = self.membership is not Membership.DIALING
        self._pulls.clear()
        self.pending.clear()
        self.generation = ""
        log = [Log("warning", f"{why}; training goes on, joining again")] if was_member else []
        return [*log, *self._dial(now)]

    def _unknown(self, message: Unknown, now: float) -> list[Effect]:
        return self._lost(f"the syncer does not know this island any more ({message.reason})", now)

    def _layout_wanted(self, message: LayoutWanted, now: float) -> list[Effect]:
        return self._dial(now, with_layout=True)

    def _refused(self, message: Refused, now: float) -> list[Effect]:
        self.syncer_says = message.reason
        running = self.stage is not Stage.WAITING_FOR_CUT
        if message.retry or running:
            self._redial_at = now + REFUSED_REDIAL_S
            return [Log("warning", f"refused by the syncer, trying again in {REFUSED_REDIAL_S:g} s: {message.reason}")]
        return [Fail(f"the syncer refused island {self.island}: {message.reason}")]

    def _welcomed(self, message: Welcome, now: float) -> list[Effect]:
        self.membership = Membership.JOINING
        self.syncer_session, self.generation = message.session, message.generation
        self.contract, self.syncer_says = message.contract, ""
        self.paused, self.final, self._providing_init = None, None, False
        effects: list[Effect] = []
        if message.plan != self.plan:
            self.plan = message.plan
            self.anchors = [Anchor() for _ in message.plan.fragments]
            effects.append(Bind(message.plan))
        held = set(message.held)
        for anchor in self.anchors:
            if anchor.name is not None:
                anchor.told(anchor.name in held)
        self.pending = self._missing(message.values)
        self._met_at_redial = {fragment for fragment in self.pending if self.anchors[fragment].name is not None}
        effects.append(Introduce(message.session, message.generation, message.token))
        return effects

    def _missing(self, values: tuple[ValueName, ...]) -> dict[int, ValueName]:
        return {name.fragment: name for name in values if self.anchors[name.fragment].name != name}

    def _joined(self, message: Joined, now: float) -> list[Effect]:
        self.membership = Membership.MEMBER
        effects: list[Effect] = [Log("info", f"joined the syncer as island {self.island}")]
        if self.stage is Stage.DONE:
            effects.append(Tell(Done(self.syncer_session, self.generation, self.step)))
        return effects

    def _init_wanted(self, message: InitWanted, now: float) -> list[Effect]:
        self._providing_init = True
        return [ProvideInit(message.uploads), Log("info", "providing the initial values")]

    # -- values --------------------------------------------------------------------------------------------------------

    def _published(self, message: Published, now: float) -> list[Effect]:
        name = message.name
        anchor = self.anchors[name.fragment]
        if self._providing_init and name.version == 0:
            anchor.renamed(name)
            return [NameAnchor(name)]
        if anchor.name == name:
            self.pending.pop(name.fragment, None)
            return []
        self.pending[name.fragment] = name
        return []

    def _final_cut(self, message: FinalCut, now: float) -> list[Effect]:
        self.final = message.values
        self._final_written.clear()
        self._pulls.clear()
        self.pending = self._missing(message.values)
        self._stop_reason = "the run is finished"
        if self.stage is Stage.FINISHED:
            return [Tell(CutInstalled(self.syncer_session, self.generation))]
        return []

    def _install(self, name: ValueName) -> Effect:
        """The install of a staged value: initial values overwrite, a value met at a redial keeps unpushed progress."""
        fragment = name.fragment
        anchor = self.anchors[fragment]
        first = anchor.name is None
        rebase = fragment in self._met_at_redial and not anchor.spent
        self._met_at_redial.discard(fragment)
        del self.pending[fragment]
        if self.final is not None or first:
            anchor.installed(name)
            self._final_written.add(fragment)
            return Install(name, Align.OVERWRITE)
        carry = self.contract.align == "carry"
        if rebase or (carry and not anchor.spent):
            anchor.rebased(name)
            return Install(name, Align.SHIFT)
        if carry and anchor.push is not None:
            anchor.carried(name)
            return Install(name, Align.CARRY)
        anchor.installed(name)
        if self.contract.align == "blend":
            return Install(name, Align.BLEND, self.contract.alpha)
        return Install(name, Align.OVERWRITE)

    # -- pulls and pushes ----------------------------------------------------------------------------------------------

    def _pulled(self, message: Pull, now: float) -> list[Effect]:
        self._pulls[message.fragment] = message
        return []

    def _pull_closed(self, message: PullClosed, now: float) -> list[Effect]:
        open_pull = self._pulls.get(message.fragment)
        if open_pull is not None and open_pull.t <= message.t:
            del self._pulls[message.fragment]
        return []

    def _push_answered(self, message: PushAnswer, now: float) -> list[Effect]:
        refused = message.outcome is Outcome.REFUSED
        for anchor in self.anchors:
            anchor.answered(message.push, spent=not refused or message.anchor_held)
        forget = ForgetUpload(message.push, arrived=not refused)
        if not refused:
            return [forget]
        return [forget, Log("info", f"push {message.push} was not taken: {message.reason}")]

    def _dropped(self, message: Dropped, now: float) -> list[Effect]:
        lost = sum(anchor.pushed_steps for anchor in self.anchors if anchor.push == message.push)
        for anchor in self.anchors:
            anchor.answered(message.push, spent=False)
        forget = ForgetUpload(message.push, arrived=False)
        if not lost:  # an empty answer, or one whose anchor was replaced since: nothing changes for the island
            return [forget]
        return [forget, Log("info", f"push {message.push} ({lost} steps) was dropped: {message.reason}")]

    def _answer(self, pull: Pull) -> list[Effect]:
        """The push that answers a pull, if the fragment has one to give at this boundary."""
        anchor = self.anchors[pull.fragment]
        done = self.stage is Stage.DONE
        if anchor.name is None or anchor.spent or pull.fragment in self.pending:
            return []
        if anchor.steps < self.contract.sync_every_steps and not done:
            return []
        del self._pulls[pull.fragment]
        self._pushes += 1
        push = f"{self.generation}.{self._pushes}"
        offer = PushOffer(
            session=self.syncer_session,
            generation=self.generation,
            push=push,
            t=pull.t,
            attempt=pull.attempt,
            anchor=anchor.name,
            steps=anchor.steps,
            tokens=anchor.tokens,
            capture_step=self.step,
        )
        anchor.offered(push)
        capture = [Capture(push, pull.fragment)] if anchor.steps else []
        return [*capture, Tell(offer)]

    # -- pause, finish, time -------------------------------------------------------------------------------------------

    def _was_paused(self, message: Paused, now: float) -> list[Effect]:
        news = self.paused is None or self.paused.reason != message.reason
        self.paused = message
        return [Log("warning", f"paused by the syncer: {message.reason}")] if news else []

    def _was_resumed(self, message: Resumed, now: float) -> list[Effect]:
        was, self.paused = self.paused, None
        return [Log("info", "the pause is over")] if was else []

    def _heartbeat_answered(self, message: HeartbeatReply, now: float) -> list[Effect]:
        self.syncer_says = message.waiting_for
        return []

    def _budget_reached(self, message: BudgetReached, now: float) -> list[Effect]:
        self._stop_reason = f"the run's {message.t} outer steps are taken"
        return []

    def _syncer_stopping(self, message: Stopping, now: float) -> list[Effect]:
        return self._lost(f"the syncer stops ({message.reason})", now)

    def _reached_last_step(self) -> list[Effect]:
        if self.stage in (Stage.DONE, Stage.FINISHED):
            return []
        self.stage = Stage.DONE
        if self.membership is not Membership.MEMBER:
            return []
        return [Tell(Done(self.syncer_session, self.generation, self.step))]

    def _at_boundary(self, staged: tuple[ValueName, ...], now: float) -> list[Effect]:
        """Installs, then pushes, then the gate and the finish."""
        effects: list[Effect] = []
        silent = self.heartbeats and now - self.last_heard_at > self.contract.island_lease_s
        if self.membership is not Membership.DIALING and silent:
            effects += self._lost(f"nothing heard from the syncer for {self.contract.island_lease_s:g} s", now)
        if self.membership is Membership.DIALING and self._redial_at is not None and now >= self._redial_at:
            effects += self._dial(now)
        effects += [self._install(name) for name in staged if self.pending.get(name.fragment) == name]
        for pull in sorted(self._pulls.values(), key=lambda pull: pull.t):
            effects += self._answer(pull)
        return effects + self._advance()

    def _advance(self) -> list[Effect]:
        """Leave a stage whose condition is met."""
        if self.stage is Stage.WAITING_FOR_CUT and self.anchors and all(anchor.name for anchor in self.anchors):
            self.stage = Stage.TRAINING
            return [Log("info", f"initial values of all {len(self.anchors)} fragments are in the model")]
        if self.stage is Stage.TRAINING and self._stop_reason is not None:
            reason, self._stop_reason = self._stop_reason, None
            return [StopTraining(reason)]
        if self.stage is Stage.DONE and self.final is not None and not self.pending:
            self.stage = Stage.FINISHED
            again: list[Effect] = [
                Install(name, Align.ANCHOR) for name in sorted(self.final) if name.fragment not in self._final_written
            ]
            return [*again, Tell(CutInstalled(self.syncer_session, self.generation))]
        return []
