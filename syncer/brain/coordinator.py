"""The brain of the syncer: who takes part, which rounds are open, when a step is taken, and when the run ends.

A pure state machine over ids, versions, counts and times. It knows no sockets, no clock, no files and no tensors: what
happens comes in as events, what is to be done goes out as effects, time and randomness are arguments. The rules live in
its parts (`joining`, `initial`, `gathering`, `closing`, `finish`); this module routes events to them in a fixed order.

Invariants (`validate`): see `state`; besides, no step is merged with fewer than `min_islands` answers, and after `Exit`
nothing is handled.
"""

from __future__ import annotations

from collections.abc import Callable

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.manifest import SavedState
from swift_diloco.core.formats.messages import (
    BudgetReached,
    CutInstalled,
    Done,
    Heartbeat,
    HeartbeatReply,
    Hello,
    IslandMessage,
    Leave,
    Paused,
    PushOffer,
    RankHello,
    Resumed,
    Saved,
    Unknown,
)
from swift_diloco.core.formats.operator_messages import AdminRequest
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import Layout
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from syncer.brain.memory.deadlines import Key
from syncer.brain.memory.overrides import CHANGEABLE
from syncer.brain.memory.roster import TEXT_MAX, Member, Presence
from syncer.brain.memory.snapshot import restore
from syncer.brain.memory.state import State
from syncer.brain.rules.closing import Closing
from syncer.brain.rules.durability import CHECKPOINT, Saving
from syncer.brain.rules.finish import AWAIT, LINGER, RETURN, Finish
from syncer.brain.rules.gathering import LAUNCH, ROUND, Gathering
from syncer.brain.rules.halt import STOP, Halt
from syncer.brain.rules.initial_cut import InitialCut
from syncer.brain.rules.joining import LEASE, RECONNECT, Joining
from syncer.brain.rules.late_pushes import Carrying
from syncer.brain.rules.orders import Admin
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
    Send,
    StopRequested,
    TimePassed,
    UploadCompleted,
    UploadFailed,
    UploadProgressed,
)

MemberMessage = Heartbeat | PushOffer | Done | CutInstalled | Saved | Leave


class Coordinator:
    """Handles events one at a time. `tokens` gives a fresh unguessable text at each call."""

    def __init__(self, settings: SyncerSettings, *, session: str, tokens: Callable[[], str]) -> None:
        self._state = State(settings, session, tokens)
        self._state.started_with = {name: getattr(settings, name) for name in CHANGEABLE}
        self._saving = Saving(self._state, unblocked=lambda: self._closing.commit_ready())
        self._initial = InitialCut(self._state, self._saving)
        self._carrying = Carrying(self._state)
        self._closing = Closing(self._state, self._carrying, holds=self._saving.holds)
        self._gathering = Gathering(self._state, self._carrying, close=self._closing.close)
        self._finish = Finish(self._state, self._saving, self._carrying)
        self._halt = Halt(self._state, self._closing, self._saving)
        self._joining = Joining(self._state, joined=self._joined, ended=self._ended)
        self._admin = Admin(self._state, changed=self._rules_changed, kick=self._leave, stop=self._halt.requested)
        self._told = ""

    # -- The interface ------------------------------------------------------------------------------------------------

    @property
    def next_wakeup(self) -> float | None:
        """When `TimePassed` is due at the latest."""
        return None if self._state.exited else self._state.deadlines.next()

    def waiting_for(self) -> str:
        """For whom or what the run waits, in words."""
        return waiting_for(self._state)

    def status(self) -> dict[str, object]:
        """The whole state as plain data."""
        return status_of(self._state)

    def validate(self) -> None:
        """Check the invariants; `AssertionError` names the one that is broken."""
        self._state.validate()

    def restore(self, saved: SavedState, layout: Layout, plan: FragmentPlan, *, now: float) -> list[Effect]:
        """Continue the run of a checkpoint, before any event; what is to be done, in order."""
        state = self._state
        state.now, state.effects = now, []
        restore(state, saved, layout, plan)
        self._saving.restored(saved)
        carried = tuple(push.push for push in saved.carried)
        versions = tuple(name.version for name in saved.values)
        state.tape(tape_lines.Resumed(t=saved.step, run=saved.run, versions=versions, carried=carried))
        state.log("info", f"run {saved.run} goes on after outer step {saved.step}")
        self._finish.resume({island for island, _ in saved.merged})
        return state.effects

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Take one event; what is to be done, in order."""
        state = self._state
        assert now >= state.now, "time went backwards"
        state.now, state.effects = now, []
        if state.exited:
            return []
        self._dispatch(event)
        for key in state.deadlines.expired(now):
            self._time_out(key)
        self._settle()
        return state.effects

    # -- Routing ------------------------------------------------------------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        match event:
            case Received(peer, message):
                self._receive(peer, message)
            case UploadProgressed(upload):
                self._gathering.progressed(upload)
            case UploadCompleted(upload, payload_bytes):
                if not (self._initial.completed(upload) or self._carrying.completed(upload, payload_bytes)):
                    self._gathering.completed(upload, payload_bytes)
            case UploadFailed(upload, reason):
                if not (self._initial.failed(upload, reason) or self._carrying.failed(upload, reason)):
                    self._gathering.failed(upload, reason)
            case InitAdopted(values):
                self._initial.adopted(values)
            case MergeFinished():
                self._closing.merged(event)
            case FragmentWritten() | CheckpointWritten() | CheckpointFailed():
                self._saved(event)
            case PeerGone(peer):
                self._joining.peer_gone(peer)
            case StopRequested():
                self._halt.requested()
            case TimePassed():
                pass

    def _saved(self, event: FragmentWritten | CheckpointWritten | CheckpointFailed) -> None:
        """News of a checkpoint."""
        match event:
            case FragmentWritten():
                self._saving.fragment_written(event)
            case CheckpointWritten():
                self._saving.written(event)
            case CheckpointFailed():
                self._saving.failed(event)

    def _receive(self, peer: Peer, message: IslandMessage) -> None:
        match message:
            case Hello():
                self._joining.hello(peer, message)
            case RankHello():
                self._joining.rank_hello(peer, message)
            case AdminRequest():
                self._admin.handle(peer, message)
            case Heartbeat() | PushOffer() | Done() | CutInstalled() | Saved() | Leave():
                speaker = self._speaker(peer, message)
                if isinstance(speaker, Member):
                    self._joining.heard(speaker)
                    self._hear(speaker, message)
                else:
                    unknown = Unknown(self._state.session, message.generation[:TEXT_MAX], speaker)
                    self._state.do(Send(peer, unknown))
            case _:
                raise AssertionError(f"{type(message).__name__} is for the server's transfers")

    def _speaker(self, peer: Peer, message: MemberMessage) -> Member | str:
        """The generation that speaks, or why it is not known."""
        if message.session != self._state.session:
            return "this syncer was started anew; join again"
        member = self._state.roster.generations.get(message.generation)
        if member is None:
            return "this generation is over; join again"
        if member.peer != peer:
            return "this generation speaks through another connection; join again"
        if not member.joined and not isinstance(message, Heartbeat | Leave):
            return "not all ranks have joined"
        return member

    def _hear(self, member: Member, message: MemberMessage) -> None:
        """A message of a known generation."""
        match message:
            case Heartbeat(step=step):
                self._advance(member, step)
                self._reply(member)
            case PushOffer():
                self._advance(member, message.capture_step)
                self._gathering.offer(member, message)
            case Done(step=step):
                self._done(member, step)
            case CutInstalled():
                self._state.log("info", f"{member} installed the final cut")
            case Saved():
                self._finish.saved(member)
            case Leave(reason=reason):
                self._leave(member, f"it left: {reason[:TEXT_MAX]}")

    def _leave(self, member: Member, reason: str) -> None:
        """A generation ends for good: on its own account or by an operator's order."""
        self._joining.end(member, reason)
        self._finish.gave_up(member)

    def _reply(self, member: Member) -> None:
        state = self._state
        oldest = next(iter(state.rounds.values()), None)
        reply = HeartbeatReply(
            state.session,
            member.generation,
            members=len(state.roster.members),
            waiting_for=self.waiting_for(),
            contributors=oldest.complete if oldest is not None else 0,
            paused=self._pause_reason() if state.paused else "",
        )
        state.send(member, reply)

    def _advance(self, member: Member, step: int) -> None:
        """A local step number was heard."""
        if member.clock.advance(step, self._state.now) and member.joined:
            self._gathering.stepped(member)

    def _done(self, member: Member, step: int) -> None:
        self._advance(member, step)
        if member.presence is Presence.TRAINING:
            self._state.roster.finish(member, Presence.DONE)
            self._state.tape(
                tape_lines.Done(island=member.island, generation=member.generation, step=member.clock.step)
            )
            self._state.log("info", f"{member} is done at step {member.clock.step}")
            self._gathering.stepped(member)

    # -- Members come and go ------------------------------------------------------------------------------------------

    def _joined(self, member: Member) -> None:
        """A generation became a member."""
        state = self._state
        state.awaited.discard(member.island)
        if state.final:
            self._finish.tell(member)
            return
        self._consider_pause()
        if state.paused:
            self._send_pause(member)
        if 0 < state.settings.outer_steps_max <= state.committed:
            state.send(member, BudgetReached(state.session, member.generation, state.committed))
        self._gathering.joined(member)

    def _ended(self, member: Member) -> None:
        """A member's generation ended."""
        self._initial.ended(member)
        self._consider_pause()
        self._gathering.ended(member)

    def _rules_changed(self) -> None:
        """An operator changed settings: parked and open rounds are examined at once, and it outlives a crash."""
        self._state.checkpoint_wanted = self._saving.enabled
        was_paused = self._state.paused
        self._consider_pause()
        if was_paused and self._state.paused:
            for member in self._state.roster.ordered():
                self._send_pause(member)
        self._gathering.examine_all()

    def _consider_pause(self) -> None:
        """Below `min_islands` members nobody trains on: what they would learn could not be merged."""
        state = self._state
        if state.values is None or state.final or state.stopping or state.paused is not state.enough:
            return
        state.paused = not state.enough
        for member in state.roster.ordered():
            if state.paused:
                member.clock.interrupt()
                self._send_pause(member)
            else:
                state.send(member, Resumed(state.session, member.generation))

    def _send_pause(self, member: Member) -> None:
        state = self._state
        missing = state.settings.min_islands - len(state.roster.members)
        state.send(member, Paused(state.session, member.generation, self._pause_reason(), missing))

    def _pause_reason(self) -> str:
        return f"{len(self._state.roster.members)} of at least {self._state.settings.min_islands} islands are here"

    # -- Time ---------------------------------------------------------------------------------------------------------

    def _time_out(self, key: Key) -> None:
        kind, owner = key
        if self._state.exited:
            return
        if kind in (LEASE, RECONNECT):
            self._joining.time_out(kind, owner)
        elif kind == ROUND:
            self._gathering.time_out(owner)
        elif key == RETURN:
            self._state.returning = False
        elif key == AWAIT:
            self._finish.give_up_waiting()
        elif key == LINGER:
            self._finish.time_out()
        elif key == STOP:
            self._halt.time_out()
        elif key == CHECKPOINT:
            self._saving.time_out()
        else:
            assert key == LAUNCH, f"nobody waits for {key}"

    def _settle(self) -> None:
        """What follows from the state as it is now, whatever the event was."""
        state = self._state
        if state.exited:
            return
        self._initial.consider()
        self._finish.consider()
        self._halt.consider()
        if not state.exited:
            self._saving.consider()
        self._gathering.launch()
        text = self.waiting_for()
        if text != self._told and not state.exited:
            self._told = text
            state.log("info" if state.values is None or state.paused else "debug", f"waiting for {text}")
