"""The brain of the syncer: who takes part, which rounds are open, when a step is taken, and when the run ends.

A pure state machine over ids, versions, counts and times. It knows no sockets, no clock, no files and no tensors: what
happens comes in as events, what is to be done goes out as effects, time and randomness are arguments. The rules live in
`rules/`, what they remember in `memory/`. This module takes an event to the rule whose matter it is, and acts on what
the rule returns: no rule calls back.

Invariants (`validate`): see `state`; besides, no step is merged with fewer than `min_islands` answers, a phase follows
another only as `phase.FOLLOWS` allows, and after `Exit` nothing is handled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import (
    BudgetReached,
    CutInstalled,
    Done,
    Heartbeat,
    HeartbeatReply,
    Hello,
    IslandMessage,
    Leave,
    PushOffer,
    RankHello,
    Saved,
)
from swift_diloco.core.formats.operator_messages import AdminRequest
from swift_diloco.core.formats.status import RunStatus
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from syncer.brain.memory import phase
from syncer.brain.memory.deadlines import Key
from syncer.brain.memory.overrides import CHANGEABLE
from syncer.brain.memory.phase import Phase
from syncer.brain.memory.roster import LEASE, TEXT_MAX, Member, Presence
from syncer.brain.memory.snapshot import restore
from syncer.brain.memory.state import ROUND, State
from syncer.brain.rules.admission import Admission, Declined, InTime, Missed
from syncer.brain.rules.closing import Closing
from syncer.brain.rules.durability import CHECKPOINT, Durability
from syncer.brain.rules.finish import AWAIT, LINGER, RETURN, Finish
from syncer.brain.rules.gathering import LAUNCH, Closed, Gathering
from syncer.brain.rules.halt import STOP, Halt
from syncer.brain.rules.initial_cut import InitialCut
from syncer.brain.rules.joining import RECONNECT, Joining, Over
from syncer.brain.rules.late_pushes import LatePushes
from syncer.brain.rules.orders import Orders, Then
from syncer.brain.rules.pause import Pause
from syncer.brain.rules.speaking import MemberMessage, Speaking
from syncer.brain.status import status_of, waiting_for
from syncer.events import (
    CheckpointFailed,
    CheckpointWritten,
    Effect,
    Event,
    FragmentWritten,
    InitAdopted,
    MergeFinished,
    Peer,
    PeerGone,
    Received,
    Restored,
    StopRequested,
    TimePassed,
    UploadCompleted,
    UploadFailed,
    UploadNews,
    UploadProgressed,
)


class Coordinator:
    """Handles events one at a time. `tokens` gives a fresh unguessable text at each call."""

    def __init__(self, settings: SyncerSettings, *, session: str, tokens: Callable[[], str]) -> None:
        self._state = state = State(settings, session, tokens)
        state.started_with = {name: getattr(settings, name) for name in CHANGEABLE}
        self._speaking = Speaking(state)
        self._joining = Joining(state)
        self._pause = Pause(state)
        self._durability = Durability(state)
        self._initial = InitialCut(state, self._durability)
        self._gathering = Gathering(state)
        self._late = LatePushes(state)
        self._admission = Admission(state, self._late)
        self._closing = Closing(state, self._late, self._durability)
        self._finish = Finish(state, self._durability, self._late)
        self._halt = Halt(state, self._closing, self._durability)
        self._orders = Orders(state)
        self._said = ""
        """For whom the run waited when people were told last."""
        self._phases = (state.phase, state.phase)
        """Before and after the last event."""

    # -- The interface ------------------------------------------------------------------------------------------------

    @property
    def next_wakeup(self) -> float | None:
        """When `TimePassed` is due: once what has arrived by then is handled, for it may move what is due."""
        return None if self._state.exited else self._state.deadlines.next()

    def waiting_for(self) -> str:
        """For whom or what the run waits, in words."""
        return waiting_for(self._state)

    def status(self) -> RunStatus:
        """The whole state as plain data."""
        return status_of(self._state)

    def validate(self) -> None:
        """Check the invariants; `AssertionError` names the one that is broken."""
        self._state.validate()
        before, after = self._phases
        assert before is after or after in phase.FOLLOWS[before], f"{after.value} cannot follow {before.value}"

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one event; what is to be done, in order."""
        state = self._state
        assert now >= state.now, "time went backwards"
        state.now, state.effects = now, []
        if state.exited:
            return []
        self._dispatch(event)
        if isinstance(event, TimePassed):  # and no other: what arrived before it may say that who seemed silent lives
            for key in state.deadlines.take_expired(now):
                if not state.exited:
                    self._time_out(key)
        if not state.exited:
            self._consider()
        self._phases = (self._phases[1], state.phase)
        return state.effects

    # -- Events -------------------------------------------------------------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        match event:
            case Received(peer, message):
                self._receive(peer, message)
            case UploadProgressed() | UploadCompleted() | UploadFailed():
                self._transferred(event)
            case MergeFinished():
                self._closing.merged(event)
            case FragmentWritten() | CheckpointWritten() | CheckpointFailed():
                self._wrote(event)
            case InitAdopted(values):
                self._initial.adopted(values)
                self._pause.consider()
            case PeerGone(peer):
                self._end(self._joining.peer_gone(peer))
            case StopRequested(signal):
                self._halt.requested(signal=signal)
            case Restored():
                self._restore(event)
            case TimePassed():
                pass
            case _:
                assert_never(event)

    def _restore(self, event: Restored) -> None:
        """The run of a checkpoint goes on."""
        state, saved = self._state, event.state
        restore(state, saved, event.layout, event.plan)
        self._durability.restored(saved)
        carried = tuple(push.push for push in saved.carried)
        versions = tuple(name.version for name in saved.values)
        state.tape(tape_lines.Resumed(t=saved.step, run=saved.run, versions=versions, carried=carried))
        state.log("info", f"run {saved.run} goes on after outer step {saved.step}")
        self._finish.resume({island for island, _ in saved.merged})

    def _transferred(self, event: UploadNews) -> None:
        """News of an upload: of a round, of a push that missed its round, or of the initial values."""
        upload = event.upload
        if upload in self._state.uploads:
            self._follow(self._gathering.transferred(event))
        elif upload in self._state.late:
            if self._late.transferred(event):
                self._follow(self._gathering.decide_all())  # what is carried now counts as an answer
        elif self._initial.expects(upload):
            self._initial.transferred(event)
        else:
            self._state.log("debug", f"{type(event).__name__} of {upload}: nobody waits for it any more")

    def _wrote(self, event: FragmentWritten | CheckpointWritten | CheckpointFailed) -> None:
        """News of a checkpoint: what waited for it may go on."""
        match event:
            case FragmentWritten():
                self._durability.fragment_written(event)
            case CheckpointWritten():
                self._durability.written(event)
                self._initial.begin()
                self._pause.consider()
            case CheckpointFailed():
                self._durability.failed(event)
        self._closing.commit_ready()

    # -- Messages -----------------------------------------------------------------------------------------------------

    def _receive(self, peer: Peer, message: IslandMessage) -> None:
        match message:
            case Hello():
                self._hello(peer, message)
            case RankHello():
                joined = self._joining.rank_hello(peer, message)
                if isinstance(joined, Member):
                    self._joined(joined)
                else:
                    self._end(joined)
            case AdminRequest():
                self._order(peer, message)
            case Heartbeat() | PushOffer() | Done() | CutInstalled() | Saved() | Leave():
                self._listen(peer, message)
            case _:
                raise AssertionError(f"{type(message).__name__} is for the server's transfers")

    def _hello(self, peer: Peer, message: Hello) -> None:
        replaced = self._joining.hello(peer, message)
        if replaced is not None:
            for old in replaced.members:
                self._end(Over(old, "it joins again"))
            self._joining.welcome(peer, message)

    def _order(self, peer: Peer, request: AdminRequest) -> None:
        then = self._orders.handle(peer, request)
        if isinstance(then, Over):
            self._leave(then)
        elif then is Then.STOP:
            self._halt.requested(signal=False)
        elif then is Then.DECIDE:
            self._pause.consider()
            self._follow(self._gathering.decide_all())

    def _listen(self, peer: Peer, message: MemberMessage) -> None:
        """A message that names a generation."""
        member = self._speaking.listen(peer, message)
        if member is not None:
            self._hear(member, message)

    def _hear(self, member: Member, message: MemberMessage) -> None:
        """A message that fits its sender's state and the run's."""
        match message:
            case Heartbeat(step=step):
                self._advance(member, step)
                self._reply(member)
            case PushOffer():
                self._advance(member, message.capture_step)
                self._offered(member, message)
            case Done(step=step):
                self._done(member, step)
            case CutInstalled():
                self._state.log("info", f"{member} installed the final cut")
            case Saved():
                self._finish.saved(member)
            case Leave(reason=reason):
                self._leave(Over(member, f"it left: {reason[:TEXT_MAX]}"))

    def _reply(self, member: Member) -> None:
        state = self._state
        oldest = next(iter(state.rounds.values()), None)
        reply = HeartbeatReply(
            state.session,
            member.generation,
            members=len(state.roster.members),
            waiting_for=self.waiting_for(),
            contributors=oldest.answered if oldest is not None else 0,
            paused=self._pause.reason(),
        )
        state.send(member, reply)

    def _advance(self, member: Member, step: int) -> None:
        """A local step number was heard."""
        if member.clock.advance(step, self._state.now) and member.joined:
            self._follow(self._gathering.stepped(member))

    def _done(self, member: Member, step: int) -> None:
        self._advance(member, step)
        self._state.roster.finish(member, Presence.DONE)
        self._state.tape(tape_lines.Done(island=member.island, generation=member.generation, step=member.clock.step))
        self._state.log("info", f"{member} is done at step {member.clock.step}")
        self._follow(self._gathering.stepped(member))

    # -- A push -------------------------------------------------------------------------------------------------------

    def _offered(self, member: Member, offer: PushOffer) -> None:
        """An island offers what it learned."""
        judged = self._admission.judge(member, offer)
        match judged:
            case InTime(gathered, lag):
                self._follow(self._gathering.admit(gathered, member, offer, lag))
            case Missed(lag):
                self._late.admit(member, offer, lag)
            case Declined():
                self._admission.decline(member, offer, judged)

    def _follow(self, closed: list[Closed]) -> None:
        """Rounds gather no more: they are merged, and committed in their turn."""
        if closed:
            self._closing.close(closed)

    # -- Members come and go ------------------------------------------------------------------------------------------

    def _joined(self, member: Member) -> None:
        """A generation became a member."""
        state = self._state
        state.awaited.discard(member.island)
        if state.phase is Phase.FINAL:
            self._finish.tell(member)
            return
        self._pause.joined(member)
        if 0 < state.settings.outer_steps_max <= state.committed:
            state.send(member, BudgetReached(state.session, member.generation, state.committed))
        self._follow(self._gathering.joined(member))

    def _end(self, over: Over | None) -> None:
        """A generation is over, if one is."""
        if over is not None and self._joining.end(over.member, over.reason):
            self._initial.ended(over.member)
            self._pause.consider()
            self._late.ended(over.member)
            self._follow(self._gathering.ended(over.member))

    def _leave(self, over: Over) -> None:
        """A generation ends for good: on its own account or by an operator's order."""
        self._end(over)
        self._finish.left(over.member)

    # -- Time ---------------------------------------------------------------------------------------------------------

    def _time_out(self, key: Key) -> None:
        kind, owner = key
        if kind in (LEASE, RECONNECT):
            self._end(self._joining.time_out(kind, owner))
        elif kind == ROUND:
            self._follow(self._gathering.time_out(owner))
        elif key == RETURN:
            self._finish.stop_pausing()
        elif key == AWAIT:
            self._finish.stop_awaiting()
        elif key == LINGER:
            self._finish.time_out()
        elif key == STOP:
            self._halt.time_out()
        elif key == CHECKPOINT:
            self._durability.time_out()
        else:
            assert key == LAUNCH, f"nobody waits for {key}"

    def _consider(self) -> None:
        """What follows from the state as it is now, whatever the event was."""
        state = self._state
        self._initial.consider()
        self._finish.consider()
        self._halt.abandon_hopeless()
        self._closing.commit_ready()
        self._halt.consider()
        if state.exited:
            return
        self._durability.consider()
        self._follow(self._gathering.launch())
        text = self.waiting_for()
        if text != self._said:
            self._said = text
            loud = state.phase.before_values or state.phase is Phase.PAUSED
            state.log("info" if loud else "debug", f"waiting for {text}")
