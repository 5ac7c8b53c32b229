"""Rounds until they close: launch, answers, uploads, members that come and go, the decision to close or begin again.

Knows nothing of merging: what closes is returned, and its caller has it merged. Every decision is `round.judge`; this
module feeds it and performs it.

Invariants: an admitted push that is not complete has an entry in `State.uploads`; an anchor is held from admission
until the push is dropped, or for ever once it is merged.
"""

from __future__ import annotations

from dataclasses import dataclass

from swift_diloco.core.formats.messages import Outcome, Pull, PushAnswer, PushOffer
from syncer.brain.memory.pacing import grace_cap, grace_s, kth_smallest, launch_gap_s, spare_s
from syncer.brain.memory.phase import Phase
from syncer.brain.memory.pushes import close_pulls, drop_answer, mute_in, take
from syncer.brain.memory.roster import Member
from syncer.brain.memory.round import Action, Answer, Patience, Round, Stage, judge
from syncer.brain.memory.state import ROUND, State
from syncer.events import UploadCompleted, UploadFailed, UploadNews, UploadProgressed

LAUNCH = ("launch", "")


@dataclass(frozen=True)
class Closed:
    """A round that gathers no more, and why: what it has is to be merged."""

    gathered: Round
    reason: str


class Gathering:
    """Keeps the rounds that gather."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._launch_due = float("-inf")

    # -- Launch -------------------------------------------------------------------------------------------------------

    def launch(self) -> list[Closed]:
        """Open every round that may be opened now."""
        state, closed = self._state, []
        phase = state.phase
        while self._may_launch(phase):
            if phase is not Phase.FINISHING and state.now < self._launch_due:
                state.deadlines.set(LAUNCH, self._launch_due)
                break
            closed += self._open()
        return closed

    def _may_launch(self, phase: Phase) -> bool:
        state = self._state
        if not phase.steps or state.starting or state.idle:
            return False
        last = state.last_t if phase is Phase.FINISHING else state.settings.outer_steps_max
        return len(state.rounds) < state.pipeline and (not last or state.launched < last)

    def _open(self) -> list[Closed]:
        state = self._state
        state.launched += 1
        opened = Round(state.launched, (state.launched - 1) % state.fragments, state.now)
        state.rounds[opened.t] = opened
        members = state.roster.members.values()
        step_time = kth_smallest((m.clock.seconds for m in members), state.quorum(len(members)))
        settings = state.settings
        gap = launch_gap_s(settings.launch_floor_s, settings.sync_every_steps, state.fragments, step_time)
        self._launch_due = state.now + gap
        return self._begin(opened)

    def _begin(self, opened: Round) -> list[Closed]:
        """Capture the members of an attempt and ask them."""
        members = self._state.roster.ordered()
        opened.capture((m.island, m.generation) for m in members)
        for member in members:
            self._ask(opened, member)
        return self.decide(opened)

    def _ask(self, gathered: Round, member: Member) -> None:
        state = self._state
        if self._owes(gathered, member):
            gathered.owe(member.island)
        pull = Pull(state.session, member.generation, gathered.t, gathered.fragment, gathered.attempt)
        state.send(member, pull)

    def _owes(self, gathered: Round, member: Member) -> bool:
        """Whether an answer can be expected: the H gate is passed, as far as is known here, or waived, or a push that
        missed an earlier round is on its way."""
        trained = member.clock.step - member.counts_from[gathered.fragment]
        gate_passed = member.done or trained >= self._state.settings.sync_every_steps
        return gate_passed or self._state.is_late(member.island, gathered.fragment)

    # -- Answers ------------------------------------------------------------------------------------------------------

    def admit(self, gathered: Round, member: Member, offer: PushOffer, lag: int) -> list[Closed]:
        """Take an offer that was found good as an answer of its round."""
        answer = take(self._state, member, offer, lag)
        gathered.admit(answer)
        if answer.empty:
            self._hold(answer)
        else:
            self._state.uploads[answer.push] = (gathered, answer.island)
        return self.decide(gathered)

    def _hold(self, answer: Answer) -> None:
        """Tell an island that its push is complete and counts."""
        message = PushAnswer(self._state.session, answer.generation, answer.push, Outcome.HELD)
        self._state.send_to(answer.island, answer.generation, message)

    def transferred(self, event: UploadNews) -> list[Closed]:
        """News of an upload of a round: it goes on, its push is held and counts, or it is dropped."""
        gathered, island = self._state.uploads[event.upload]
        match event:
            case UploadProgressed():
                gathered.answers[island].progressed_at = self._state.now
                return []
            case UploadCompleted(upload, payload_bytes):
                del self._state.uploads[upload]
                self._hold(gathered.finish(island, payload_bytes))
            case UploadFailed(_, reason):
                self._withdraw(gathered, island, reason)
        return self.decide(gathered)

    def _withdraw(self, gathered: Round, island: int, reason: str) -> None:
        """A push will not come: its island is asked again."""
        answer = gathered.withdraw(island)
        drop_answer(self._state, gathered, answer, reason, freed=True)
        member = self._state.roster.members.get(island)
        if member is not None and gathered.members.get(island) == member.generation:
            self._ask(gathered, member)

    # -- Members ------------------------------------------------------------------------------------------------------

    def joined(self, member: Member) -> list[Closed]:
        """An island is a member: slots its last generation left are its own."""
        for gathered in self._gathering():
            if gathered.fill(member.island, member.generation):
                self._ask(gathered, member)
        return self.decide_all()

    def ended(self, member: Member) -> list[Closed]:
        """A generation ended: what it had not completed is gone, what it had completed stays."""
        for each in self._state.rounds.values():
            answer = each.answers.get(member.island)
            if answer is not None and answer.generation == member.generation and not answer.complete:
                each.withdraw(member.island)
                drop_answer(self._state, each, answer, "its generation ended before it was complete", freed=True)
            each.leave(member.island, member.generation)
        return self.decide_all()

    def stepped(self, member: Member) -> list[Closed]:
        """A member's local step advanced, or it is done."""
        closed: list[Closed] = []
        for gathered in self._gathering():
            waited_for = member.island in gathered.pending and member.island not in gathered.owing
            if waited_for and self._owes(gathered, member):
                gathered.owe(member.island)
                closed += self.decide(gathered)
        return closed

    def _gathering(self) -> list[Round]:
        return [r for r in self._state.rounds.values() if r.stage is Stage.GATHERING]

    # -- Decisions ----------------------------------------------------------------------------------------------------

    def decide_all(self) -> list[Closed]:
        """Members or rules changed: decide about every round anew."""
        return [closed for gathered in self._gathering() for closed in self.decide(gathered)]

    def time_out(self, t: str) -> list[Closed]:
        """The time of a verdict has come."""
        gathered = self._state.rounds.get(int(t))
        return [] if gathered is None else self.decide(gathered)

    def decide(self, gathered: Round) -> list[Closed]:
        """Decide about a round. It waits or begins again here; that it closes is its owner's to follow."""
        state, settings = self._state, self._state.settings
        if gathered.stage is not Stage.GATHERING:
            return []
        gathered.mute = mute_in(state, gathered)
        k = state.quorum(gathered.present)
        if gathered.note(k, state.now):
            gathered.grace_s = self._grace(gathered, k)
        patience = Patience(settings.quorum_timeout_s, settings.upload_grace_s, enough=state.phase.steps)
        verdict = judge(gathered, k, patience, state.now)
        key = (ROUND, str(gathered.t))
        if verdict.action is Action.WAIT and verdict.due is not None:
            state.deadlines.set(key, verdict.due)
            return []
        state.deadlines.clear(key)
        if verdict.action is Action.RESTART:
            return self._restart(gathered, verdict.reason)
        return [Closed(gathered, verdict.reason)] if verdict.action is Action.CLOSE else []

    def _grace(self, gathered: Round, k: int) -> float:
        """How long to wait for the others, now that the quorum is there."""
        state, settings = self._state, self._state.settings
        if state.last_t is not None:
            return settings.upload_grace_s  # The last rounds: everybody stands still, and what is missed now is lost.
        assert gathered.clock_at is not None
        times = (state.roster.members[i].clock.seconds for i in gathered.members if i in state.roster.members)
        step_time, quorum_s = kth_smallest(times, k), state.now - gathered.clock_at
        spare = spare_s(settings.grace_tau, step_time, quorum_s, state.sync_s)
        return grace_s(settings.grace_gamma, spare, grace_cap(settings.grace_cap_s, step_time))

    def _restart(self, gathered: Round, reason: str) -> list[Closed]:
        """Begin the next attempt with the members of now."""
        state = self._state
        for _, answer in sorted(gathered.answers.items()):
            drop_answer(state, gathered, answer, f"outer step {gathered.t} begins again: {reason}")
        close_pulls(state, gathered)
        gathered.attempt += 1
        state.log("warning", f"outer step {gathered.t} begins again as attempt {gathered.attempt}: {reason}")
        return self._begin(gathered)
