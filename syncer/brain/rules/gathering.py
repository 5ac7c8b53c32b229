"""Rounds until they close: launch, offers, uploads, members that come and go, the decision to close or begin again.

Knows nothing of merging: a round that closes is handed to its owner. Every decision is `rounds.judge`; this module
feeds it and performs it.

Invariants: an admitted push that is not complete has an entry in `State.uploads`; an anchor is held from admission
until the push is dropped, or for ever once it is merged.
"""

from __future__ import annotations

from collections.abc import Callable

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import Outcome, Pull, PullClosed, PushAnswer, PushOffer
from syncer.brain.memory.history import Standing
from syncer.brain.memory.pacing import grace_s, kth_smallest, launch_gap_s, spare_s, weight_of
from syncer.brain.memory.roster import TEXT_MAX, Member
from syncer.brain.memory.round import Action, Answer, Patience, Round, Stage, judge
from syncer.brain.memory.state import State, drop_answer
from syncer.brain.rules.late_pushes import Carrying
from syncer.events import OpenUpload

ROUND = "round"
LAUNCH = ("launch", "")

COUNT_MAX = 2**53
"""Largest step or token count: beyond it a count is no exact float, and no island lives that long."""


def close_pulls(state: State, gathered: Round) -> None:
    """Tell those who have not answered that they need not any more."""
    for island in sorted(gathered.pending):
        if island not in gathered.answers:
            generation = gathered.members[island]
            state.send_to(island, generation, PullClosed(state.session, generation, gathered.t, gathered.fragment))


class Gathering:
    """Keeps the rounds that gather."""

    def __init__(self, state: State, carrying: Carrying, *, close: Callable[[Round, str], None]) -> None:
        self._state = state
        self._carrying = carrying
        self._close = close
        self._launch_due = float("-inf")

    # -- Launch -------------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Open every round that may be opened now."""
        state = self._state
        while self._may_launch():
            if state.goal is None and state.now < self._launch_due:
                state.deadlines.set(LAUNCH, self._launch_due)
                return
            self._open()

    def _may_launch(self) -> bool:
        state = self._state
        if state.values is None or state.starting or state.stopping or state.final or not state.enough or state.idle:
            return False
        last = state.settings.outer_steps_max if state.goal is None else state.goal
        return len(state.rounds) < state.pipeline and (last == 0 or state.launched < last)

    def _open(self) -> None:
        state = self._state
        state.launched += 1
        opened = Round(state.launched, (state.launched - 1) % state.fragments, state.now)
        state.rounds[opened.t] = opened
        members = state.roster.members.values()
        step_time = kth_smallest((m.clock.seconds for m in members), state.quorum(len(members)))
        settings = state.settings
        gap = launch_gap_s(settings.launch_floor_s, settings.sync_every_steps, state.fragments, step_time)
        self._launch_due = state.now + gap
        self._begin(opened)

    def _begin(self, opened: Round) -> None:
        """Capture the members of an attempt and ask them."""
        members = self._state.roster.ordered()
        opened.capture((m.island, m.generation) for m in members)
        for member in members:
            self._ask(opened, member)
        self.examine(opened)

    def _ask(self, gathered: Round, member: Member) -> None:
        state = self._state
        if self._owes(gathered, member):
            gathered.owe(member.island)
        pull = Pull(state.session, member.generation, gathered.t, gathered.fragment, gathered.attempt)
        state.send(member, pull)

    def _owes(self, gathered: Round, member: Member) -> bool:
        """Whether an answer can be expected: the H gate is passed, as far as is known here, or waived."""
        trained = member.clock.step - member.installed[gathered.fragment]
        return member.done or trained >= self._state.settings.sync_every_steps

    # -- Answers ------------------------------------------------------------------------------------------------------

    def offer(self, member: Member, offer: PushOffer) -> None:
        """An island offers what it learned."""
        state = self._state
        gathered = state.rounds.get(offer.t)
        late = self._carrying.takes(offer, gathered)
        reason = self._malformed(member, offer)
        if reason is None:
            reason = self._carrying.refusal(member, offer) if late else self._refusal(member, offer, gathered)
        anchor_held = reason is None and offer.steps > 0 and state.held.holds(member.island, offer.anchor)
        if anchor_held:
            reason = f"a delta from this anchor (version {offer.anchor.version}) is held already"
        if reason is not None:
            self._answer(member, offer.push, Outcome.REFUSED, reason, anchor_held=anchor_held)
            fragment = offer.anchor.fragment
            state.tape(
                tape_lines.Refused(island=member.island, push=offer.push[:TEXT_MAX], fragment=fragment, reason=reason)
            )
            return
        answer = self._admitted(member, offer)
        if late:
            self._carrying.admit(offer, answer)
            return
        assert gathered is not None
        gathered.admit(answer)
        if answer.empty:
            gathered.finish(member.island, 0)
            self._answer(member, offer.push, Outcome.HELD)
        else:
            state.held.gather(member.island, offer.anchor, offer.capture_step)
            state.uploads[offer.push] = (gathered, member.island)
            encoding = state.settings.delta_encoding
            state.do(OpenUpload(offer.push, member.generation, gathered.fragment, encoding))
        self.examine(gathered)

    def _admitted(self, member: Member, offer: PushOffer) -> Answer:
        """A good offer; the tape knows of it from now on."""
        state = self._state
        assert state.values is not None
        if offer.steps > 0:
            pushed = tape_lines.Pushed(
                island=member.island,
                generation=member.generation,
                push=offer.push,
                t=offer.t,
                fragment=offer.anchor.fragment,
                base_version=offer.anchor.version,
                base_digest=offer.anchor.digest,
                steps=offer.steps,
                tokens=offer.tokens,
                capture_step=offer.capture_step,
            )
            state.tape(pushed)
        return Answer(
            push=offer.push,
            island=member.island,
            generation=member.generation,
            anchor=offer.anchor,
            lag=0 if offer.steps == 0 else state.values.lag(offer.anchor),
            steps=offer.steps,
            tokens=offer.tokens,
            capture_step=offer.capture_step,
            weight=weight_of(state.settings.weights, offer.steps, offer.tokens),
            progressed_at=state.now,
        )

    def _malformed(self, member: Member, offer: PushOffer) -> str | None:
        """What no honest island offers."""
        if not offer.push.startswith(f"{member.generation}.") or len(offer.push) > TEXT_MAX:
            return f"the push id must begin with the generation and a dot, and have at most {TEXT_MAX} characters"
        mine = (each.answers.get(member.island) for each in self._state.rounds.values())
        carried = (late.answer for late in self._state.carried.values())
        if offer.push in self._state.late or any(a is not None and a.push == offer.push for a in (*mine, *carried)):
            return "the push id is in use"
        if not (0 <= offer.steps <= COUNT_MAX and 0 <= offer.tokens <= COUNT_MAX):
            return f"{offer.steps} steps and {offer.tokens} tokens; expected 0 to {COUNT_MAX}"
        return None

    def _refusal(self, member: Member, offer: PushOffer, gathered: Round | None) -> str | None:
        """Why an offer is not taken, in the order of the admission rule (all but "anchor held", which comes last)."""
        state = self._state
        if gathered is None or gathered.fragment != offer.anchor.fragment:
            return f"outer step {offer.t} is not open for fragment {offer.anchor.fragment}"
        if gathered.stage is not Stage.GATHERING or gathered.attempt != offer.attempt:
            return f"attempt {offer.attempt} of outer step {offer.t} is over"
        if gathered.members.get(member.island) != member.generation:
            return f"island {member.island} was no member when outer step {offer.t} was launched"
        assert state.values is not None
        if offer.steps > 0:
            standing = state.values.standing(offer.anchor)
            if standing in (Standing.FORKED, Standing.NEWER):
                return f"the anchor (version {offer.anchor.version}) is {standing.value}; install the present one first"
            if (lag := state.values.lag(offer.anchor)) > state.settings.max_base_lag:
                return f"the anchor is {lag} versions behind; at most {state.settings.max_base_lag} are allowed"
        if member.island in gathered.answers:
            return f"outer step {offer.t} has an answer of island {member.island} already"
        return None

    def _answer(
        self, member: Member, push: str, outcome: Outcome, reason: str = "", *, anchor_held: bool = False
    ) -> None:
        state = self._state
        state.send(member, PushAnswer(state.session, member.generation, push, outcome, reason, anchor_held))

    def progressed(self, upload: str) -> None:
        """Chunks of an upload arrived."""
        if (entry := self._state.uploads.get(upload)) is not None:
            gathered, island = entry
            gathered.answers[island].progressed_at = self._state.now

    def completed(self, upload: str, payload_bytes: int) -> None:
        """An upload is complete: its push is held and counts."""
        entry = self._state.uploads.pop(upload, None)
        if entry is None:
            return
        gathered, island = entry
        answer = gathered.finish(island, payload_bytes)
        message = PushAnswer(self._state.session, answer.generation, answer.push, Outcome.HELD)
        self._state.send_to(island, answer.generation, message)
        self.examine(gathered)

    def failed(self, upload: str, reason: str) -> None:
        """An upload failed for good: its push is dropped and the island asked again."""
        entry = self._state.uploads.get(upload)
        if entry is None:
            return
        gathered, island = entry
        answer = gathered.withdraw(island)
        drop_answer(self._state, gathered, answer, reason, freed=True)
        member = self._state.roster.members.get(island)
        if member is not None and gathered.members.get(island) == member.generation:
            self._ask(gathered, member)
        self.examine(gathered)

    # -- Members ------------------------------------------------------------------------------------------------------

    def joined(self, member: Member) -> None:
        """An island is a member: slots its last generation left are its own."""
        for gathered in self._gathering():
            if gathered.fill(member.island, member.generation):
                self._ask(gathered, member)
        self.examine_all()

    def ended(self, member: Member) -> None:
        """A generation ended: what it had not completed is gone, what it had completed stays."""
        for each in self._state.rounds.values():
            answer = each.answers.get(member.island)
            if answer is not None and answer.generation == member.generation and not answer.complete:
                each.withdraw(member.island)
                drop_answer(self._state, each, answer, "its generation ended before it was complete", freed=True)
            each.leave(member.island, member.generation)
        self._carrying.ended(member)
        self.examine_all()

    def stepped(self, member: Member) -> None:
        """A member's local step advanced, or it is done."""
        for gathered in self._gathering():
            if member.island in gathered.pending and member.island not in gathered.owing:
                if not self._owes(gathered, member):
                    continue
                gathered.owe(member.island)
                self.examine(gathered)

    def _gathering(self) -> list[Round]:
        return [r for r in self._state.rounds.values() if r.stage is Stage.GATHERING]

    # -- Decisions ----------------------------------------------------------------------------------------------------

    def examine_all(self) -> None:
        """Members or rules changed: decide about every round anew."""
        for gathered in self._gathering():
            self.examine(gathered)

    def time_out(self, t: str) -> None:
        """The time of a verdict has come."""
        if (gathered := self._state.rounds.get(int(t))) is not None:
            self.examine(gathered)

    def examine(self, gathered: Round) -> None:
        """Decide about a round."""
        state, settings = self._state, self._state.settings
        if gathered.stage is not Stage.GATHERING:
            return
        k = state.quorum(gathered.present)
        if gathered.note(k, state.now):
            gathered.grace_s = self._grace(gathered, k)
        enough = state.enough and not state.stopping
        patience = Patience(settings.quorum_timeout_s, settings.upload_grace_s, enough)
        verdict = judge(gathered, k, patience, state.now)
        key = (ROUND, str(gathered.t))
        if verdict.action is Action.WAIT and verdict.due is not None:
            state.deadlines.set(key, verdict.due)
            return
        state.deadlines.clear(key)
        if verdict.action is Action.CLOSE:
            self._close(gathered, verdict.reason)
        elif verdict.action is Action.RESTART:
            self._restart(gathered, verdict.reason)

    def _grace(self, gathered: Round, k: int) -> float:
        """How long to wait for the others, now that the quorum is there."""
        state, settings = self._state, self._state.settings
        if state.goal is not None:
            return settings.upload_grace_s  # The last rounds: everybody stands still, and what is missed now is lost.
        assert gathered.clock_at is not None
        times = (state.roster.members[i].clock.seconds for i in gathered.members if i in state.roster.members)
        quorum_s = state.now - gathered.clock_at
        spare = spare_s(settings.grace_tau, kth_smallest(times, k), quorum_s, state.sync_s)
        return grace_s(settings.grace_gamma, spare, settings.grace_cap_s)

    def _restart(self, gathered: Round, reason: str) -> None:
        """Begin the next attempt with the members of now."""
        state = self._state
        for _, answer in sorted(gathered.answers.items()):
            drop_answer(state, gathered, answer, f"outer step {gathered.t} begins again: {reason}")
        close_pulls(state, gathered)
        gathered.attempt += 1
        state.log("warning", f"outer step {gathered.t} begins again as attempt {gathered.attempt}: {reason}")
        self._begin(gathered)
