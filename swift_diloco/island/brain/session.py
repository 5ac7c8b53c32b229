"""The island's brain: when to dial, install, push, pause and finish.

A pure state machine: every rank of an island runs the same `Session` on the same events (what rank 0's control link
heard, rank 0's clock, and facts the ranks agreed on), so all ranks come to the same effects at the same step boundary.
It holds names, versions and counters, never tensors, and knows neither sockets nor the trainer.

At a boundary the shell feeds `StepEnded`, what was heard, `BoundaryReached`, in this order (rule "boundary order").
What a boundary installs comes first among its effects, so that a shell can write it in one go.

Invariants (`validate`): one unsettled push per fragment; a pull is answered only from an anchor that is not spent and
not about to be replaced; once finished, nothing is offered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, assert_never

from swift_diloco.core.formats.messages import (
    BudgetReached,
    Command,
    Contract,
    CutInstalled,
    Done,
    Dropped,
    FinalCut,
    HeartbeatReply,
    InGeneration,
    InitWanted,
    Joined,
    LayoutWanted,
    Leave,
    Paused,
    PauseOver,
    Published,
    Pull,
    PullClosed,
    PushAnswer,
    Refused,
    Saved,
    Stopping,
    SyncerMessage,
    Unknown,
    ValueName,
    Welcome,
)
from swift_diloco.island.brain.anchors import Anchor
from swift_diloco.island.brain.holdings import Holdings
from swift_diloco.island.brain.initial_values import InitialValues
from swift_diloco.island.brain.orders import Orders
from swift_diloco.island.brain.pushes import Offerer, Pushes
from swift_diloco.island.brain.stages import (
    MEMBERSHIPS,
    STAGES,
    Membership,
    Profile,
    TrainingStage,
    follow,
    misplaced,
    refusal,
)
from swift_diloco.island.brain.terms import published_exactly
from swift_diloco.island.events import (
    BoundaryReached,
    Dial,
    Effect,
    Event,
    Fail,
    FetchExactly,
    Heard,
    Install,
    Introduce,
    LastStepReached,
    Left,
    LinkLost,
    Log,
    SaveFinished,
    SeekSyncer,
    Started,
    StartEnded,
    StepEnded,
    StopTraining,
    Tell,
)
from swift_diloco.island.remembered import Remembered

REDIAL_S = 2.0
"""A Hello without answer is said again after this long; the syncer may just be starting."""

REFUSED_REDIAL_S = 15.0
"""After a refusal that time may heal (an older life of this island still holds its place)."""


class Session:
    """What one rank knows of the run; the same on all ranks."""

    def __init__(self, profile: Profile, remembered: Remembered | None = None) -> None:
        self.profile = profile
        self.membership = Membership.APART
        self.stage = TrainingStage.WAITING_FOR_CUT if profile.initial_cut_timeout_s > 0 else TrainingStage.TRAINING
        self.syncer_session = ""
        self.generation = ""
        self.contract = Contract()
        self.holdings = Holdings(remembered)
        self.pushes = Pushes(self.holdings)
        self.final: tuple[ValueName, ...] | None = None
        self.paused: Paused | None = None
        self.syncer_says = ""
        self.last_heard_at = 0.0
        self._ruled_at = 0.0
        """When the generation that may have paused the run was heard last."""
        self.step = profile.step
        self._initial = InitialValues(profile)
        self._dials = 0
        self._redial_at: float | None = None
        self._stop: StopTraining | None = None
        self._orders = Orders()

    # -- questions -----------------------------------------------------------------------------------------------------

    def may_train(self, now: float) -> bool:
        """Whether the trainer may take a step: values are there, and no living syncer has paused the run."""
        if self.stage is not TrainingStage.TRAINING:
            return False
        return self.paused is None or now - self._ruled_at > self.contract.island_lease_s

    @property
    def anchors(self) -> list[Anchor]:
        """One per fragment, in fragment order."""
        return self.holdings.anchors

    def wanted(self) -> tuple[ValueName, ...]:
        """Values to install as soon as every rank has staged them, in fragment order."""
        return self.holdings.wanted()

    def parted(self) -> bool:
        """Whether it finished and has lost the link since: the cut is said again before `Saved` can be."""
        return self.stage is TrainingStage.FINISHED and self.final is None

    def waiting_for(self) -> str:
        """For whom the island waits, in words; empty when it does not."""
        if self.membership is Membership.DIALING:
            return "the syncer to answer" + (f" ({self.syncer_says})" if self.syncer_says else "")
        if self.membership is Membership.JOINING:
            return "the syncer to take in all ranks"
        if self.stage is TrainingStage.WAITING_FOR_CUT:
            says = f"; the syncer waits for {self.syncer_says}" if self.syncer_says else ""
            return f"initial values of {self.holdings.missing} of {len(self.anchors)} fragments{says}"
        if self.paused is not None:
            return f"{self.paused.missing} more island(s): {self.paused.reason}"
        if self.stage is TrainingStage.DONE:
            what = f"{len(self.holdings.pending)} fragments of the final cut" if self.final else "the final cut"
            return what + (f"; the syncer waits for {self.syncer_says}" if self.syncer_says else "")
        return ""

    def validate(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        self.holdings.validate()
        assert self.stage is not TrainingStage.FINISHED or not self.holdings.pending

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one event; returns what the shell must do, installs first, then in order. Raises AssertionError for one
        that cannot happen in the state it comes in."""
        if reason := misplaced(type(event), self.membership, self.stage):
            raise AssertionError(reason)
        match event:
            case Heard(message):
                return self._on_heard(message, now)
            case StepEnded(step, trained, tokens):
                self.step = step
                if trained:
                    self.holdings.trained(tokens)
                return []
            case BoundaryReached(staged):
                return self._at_boundary(staged, now)
            case Started():
                self.last_heard_at = now
                return self._dial(now)
            case LinkLost():
                return self._link_lost(now)
            case StartEnded():
                return self.holdings.summarize(waiting_ended=True)
            case LastStepReached():
                return self._reached_last_step()
            case SaveFinished():
                return self._saved()
            case Left(reason):
                return self._leave(reason)
            case _:
                assert_never(event)

    def _on_heard(self, message: SyncerMessage, now: float) -> list[Effect]:
        if not self._is_for_us(message):
            return []  # replayed: of an earlier dial, generation or session
        self.last_heard_at = now
        if isinstance(message, InGeneration):
            self._ruled_at = now
        if reason := refusal(type(message), self.membership, self.stage):
            return [Log("warning", reason)]
        return self._HEARD[type(message)](self, message, now)

    def _enter(self, new: Membership | TrainingStage, event: str) -> None:
        """The only way from state to state."""
        if isinstance(new, Membership):
            self.membership = follow(MEMBERSHIPS, self.membership, new, event)
        else:
            self.stage = follow(STAGES, self.stage, new, event)

    def _is_for_us(self, message: SyncerMessage) -> bool:
        """Answers to a dial repeat its nonce; everything else must bear the present session and generation."""
        if isinstance(message, Welcome | LayoutWanted | Refused) and message.nonce:
            return message.nonce == self._nonce()
        if isinstance(message, Refused):
            return message.session in ("", self.syncer_session)
        if isinstance(message, Unknown):
            return message.generation == self.generation
        return (
            isinstance(message, InGeneration)
            and not isinstance(message, Welcome)
            and (message.session, message.generation) == (self.syncer_session, self.generation)
        )

    # -- joining -------------------------------------------------------------------------------------------------------

    def _nonce(self) -> str:
        return f"{self.profile.life}.{self._dials}"

    def _dial(self, now: float, *, with_layout: bool = False) -> list[Effect]:
        self._dials += 1
        self._enter(Membership.DIALING, "a dial")
        self._redial_at = now + REDIAL_S
        return [Dial(self._nonce(), with_layout, self.step, self.holdings.grown)]

    def _link_lost(self, now: float) -> list[Effect]:
        if self.membership is Membership.APART:
            return []
        gone = self.membership is not Membership.DIALING and self.stage is not TrainingStage.FINISHED
        return [*self._lost("the link to the syncer broke", now), *([SeekSyncer()] if gone else [])]

    def _lost(self, why: str, now: float) -> list[Effect]:
        """The generation is over: the island joins again at once."""
        was_member = self.membership is not Membership.DIALING
        self._void()
        goes_on = "training goes on, " if self.stage is TrainingStage.TRAINING else ""
        log = [Log("warning", f"{why}; {goes_on}joining again")] if was_member else []
        return [*log, *self._dial(now)]

    def _void(self) -> None:
        """What a generation had under way is void with it; what it holds (anchors, counters) stays."""
        self.pushes.void()
        self._initial.void()
        self.final = None  # the Welcome to come is followed by the cut again
        self.holdings.lost()
        self.generation = ""

    def _refused(self, message: Refused, now: float) -> list[Effect]:
        if self.membership is not Membership.DIALING and not message.nonce:
            return [Log("warning", f"the syncer did not take a message of this island: {message.reason}")]
        self.syncer_says = message.reason
        if not message.retry and self.stage is TrainingStage.WAITING_FOR_CUT:
            return [Fail(f"the syncer refused island {self.profile.island}: {message.reason}")]
        self._void()
        self._enter(Membership.DIALING, "Refused")
        self._redial_at = now + REFUSED_REDIAL_S
        return [Log("warning", f"refused by the syncer, trying again in {REFUSED_REDIAL_S:g} s: {message.reason}")]

    def _welcomed(self, message: Welcome, now: float) -> list[Effect]:
        self._enter(Membership.JOINING, "Welcome")
        self.syncer_session, self.generation = message.session, message.generation
        self.contract, self.syncer_says = message.contract, ""
        self.paused = None
        effects = [] if self.stage is TrainingStage.FINISHED else self.holdings.welcomed(message)
        held, spent = self.holdings.valued(), self.holdings.spent()
        introduce = Introduce(
            message.session, message.generation, message.token, message.contract, held=held, spent=spent
        )
        return [*effects, introduce]

    def _joined(self, message: Joined, now: float) -> list[Effect]:
        self._enter(Membership.MEMBER, "Joined")
        log = Log("info", f"joined the syncer as island {self.profile.island}")
        return [log, *self._done()] if self.stage is TrainingStage.DONE else [log]

    def _init_wanted(self, message: InitWanted, now: float) -> list[Effect]:
        return self._initial.ask(message, now, grown=any(anchor.name for anchor in self.anchors))

    # -- values --------------------------------------------------------------------------------------------------------

    def _published(self, message: Published, now: float) -> list[Effect]:
        # In a coarser encoding also the provider's own values come back changed: it installs them like everybody.
        if self._initial.provided and message.name.version == 0 and published_exactly(self.contract):
            return self.holdings.provided(message.name, message.run)
        return self.holdings.published(message.name, message.run)

    def _final_cut(self, message: FinalCut, now: float) -> list[Effect]:
        here = all(self.anchors[name.fragment].is_same(name) for name in message.values)
        if self.stage is TrainingStage.FINISHED and not here:
            return [Log("error", "the syncer's final cut is another one than is in the model; it is not installed")]
        self.final = message.values
        self.pushes.void()
        if self.stage is TrainingStage.FINISHED:
            return [Tell(CutInstalled(self.syncer_session, self.generation))]
        exact = published_exactly(self.contract)
        self.holdings.final_cut(message.values, held_exactly=exact)
        self._stop = StopTraining("the run is finished")
        return [] if exact else [FetchExactly(message.values)]

    def _pulled(self, message: Pull, now: float) -> list[Effect]:
        self.pushes.pulled(message)
        return []

    def _pull_closed(self, message: PullClosed, now: float) -> list[Effect]:
        self.pushes.closed(message)
        return []

    # -- pause, finish, time -------------------------------------------------------------------------------------------

    def _was_paused(self, message: Paused, now: float) -> list[Effect]:
        news = self.paused is None or self.paused.reason != message.reason
        self.paused = message
        return [Log("warning", f"paused by the syncer: {message.reason}")] if news else []

    def _was_resumed(self, message: PauseOver, now: float) -> list[Effect]:
        was, self.paused = self.paused, None
        return [Log("info", "the pause is over")] if was else []

    def _heartbeat_answered(self, message: HeartbeatReply, now: float) -> list[Effect]:
        self.syncer_says = message.waiting_for
        return []

    def _budget_reached(self, message: BudgetReached, now: float) -> list[Effect]:
        self._stop = StopTraining(f"the run's {message.t} outer steps are taken")
        return []

    def _reached_last_step(self) -> list[Effect]:
        self._enter(TrainingStage.DONE, "LastStepReached")
        return self._done() if self.membership is Membership.MEMBER else []

    def _done(self) -> list[Effect]:
        return [Tell(Done(self.syncer_session, self.generation, self.step))]

    def _saved(self) -> list[Effect]:
        if self.stage is not TrainingStage.FINISHED:
            return self._leave("it stopped before the end of the run")
        if self.parted():
            return [Log("warning", "saved, but the syncer could not be told: it waits a while before it ends")]
        return [Tell(Saved(self.syncer_session, self.generation))]

    def _leave(self, reason: str) -> list[Effect]:
        """The generation, if there is one, ends for good."""
        return [Tell(Leave(self.syncer_session, self.generation, reason))] if self.generation else []

    def _at_boundary(self, staged: tuple[ValueName, ...], now: float) -> list[Effect]:
        """Installs, then pushes, then the gate and the finish."""
        effects: list[Effect] = []
        silent = self.profile.heartbeats and now - self.last_heard_at > self.contract.island_lease_s
        if self.membership is not Membership.DIALING and silent:
            effects += self._lost(f"nothing heard from the syncer for {self.contract.island_lease_s:g} s", now)
        if self.membership is Membership.DIALING and self._redial_at is not None and now >= self._redial_at:
            effects += self._dial(now)
        effects += self._initial.provide_if_due(now)
        pending = self.holdings.pending
        effects += [self.holdings.install(name, self.contract) for name in staged if pending.get(name.fragment) == name]
        done = self.stage is TrainingStage.DONE
        asked = Offerer(self.syncer_session, self.generation, self.contract, self.step, done)
        effects += self.pushes.answer(asked)
        effects += [*self.holdings.summarize(), *self._orders.obey(), *self._advance()]
        return sorted(effects, key=lambda effect: not isinstance(effect, Install))

    def _advance(self) -> list[Effect]:
        """Leave a stage whose condition is met."""
        if self.stage is TrainingStage.WAITING_FOR_CUT and self.holdings.complete:
            self._enter(TrainingStage.TRAINING, "BoundaryReached")
        if self.stage is TrainingStage.TRAINING and self._stop is not None:
            stop, self._stop = self._stop, None
            return [stop]
        if self.stage is TrainingStage.DONE and self.final is not None and not self.holdings.pending:
            self._enter(TrainingStage.FINISHED, "BoundaryReached")
            again = self.holdings.left_to_write(self.final)
            return [*again, Tell(CutInstalled(self.syncer_session, self.generation))]
        return []

    _HEARD: ClassVar[dict[type, Callable[[Session, Any, float], list[Effect]]]] = {
        LayoutWanted: lambda self, _, now: self._dial(now, with_layout=True),
        Welcome: _welcomed,
        Refused: _refused,
        Unknown: lambda self, message, now: self._lost(
            f"the syncer does not know this island any more ({message.reason})", now
        ),
        Joined: _joined,
        InitWanted: _init_wanted,
        Published: _published,
        Pull: _pulled,
        PullClosed: _pull_closed,
        PushAnswer: lambda self, message, now: self.pushes.answered(message),
        Dropped: lambda self, message, now: self.pushes.dropped(message),
        Paused: _was_paused,
        PauseOver: _was_resumed,
        HeartbeatReply: _heartbeat_answered,
        Command: lambda self, message, now: self._orders.give(message),
        BudgetReached: _budget_reached,
        FinalCut: _final_cut,
        Stopping: lambda self, message, now: self._lost(f"the syncer stops ({message.reason})", now),
    }
    """Who takes which message: of the class, for a session's own attributes are its state."""
