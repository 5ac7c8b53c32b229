"""Whether an offered push is taken: for its round, late for the next one, or not at all, and why.

Judging changes nothing: the order of the rule (4.6) is the order of the questions, and who asked acts on the answer.
Nothing that an offer would push aside is dropped before the offer is found good.
"""

from __future__ import annotations

from dataclasses import dataclass

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import Outcome, PushAnswer, PushOffer
from syncer.brain.memory.history import Standing
from syncer.brain.memory.pacing import weight_of
from syncer.brain.memory.roster import TEXT_MAX, Member
from syncer.brain.memory.round import Answer, Round, Stage
from syncer.brain.memory.state import State
from syncer.brain.rules.late_pushes import LatePushes

COUNT_MAX = 2**53
"""Largest step or token count: beyond it a count is no exact float, and no island lives that long."""


@dataclass(frozen=True)
class InTime:
    """The offer is taken as an answer of its round."""

    gathered: Round
    answer: Answer


@dataclass(frozen=True)
class Missed:
    """The round is over; the offer is taken for the next one of its fragment."""

    answer: Answer


@dataclass(frozen=True)
class Declined:
    """The offer is not taken. `anchor_held`: a delta from its anchor was taken before."""

    reason: str
    anchor_held: bool = False


Judgement = InTime | Missed | Declined


class Admission:
    """Judges offers by what is remembered."""

    def __init__(self, state: State, late: LatePushes) -> None:
        self._state = state
        self._late = late

    def judge(self, member: Member, offer: PushOffer) -> Judgement:
        """What becomes of an offer."""
        state = self._state
        gathered = state.rounds.get(offer.t)
        late = self._missed(offer, gathered)
        reason = self._malformed(member, offer)
        if reason is None:
            reason = self._late.refusal(member, offer) if late else self._refusal(member, offer, gathered)
        if reason is not None:
            return Declined(reason)
        if offer.steps > 0 and state.held.holds(member.island, offer.anchor):
            held = f"a delta from this anchor (version {offer.anchor.version}) is held already"
            return Declined(held, anchor_held=True)
        answer = self._answer(member, offer)
        if late:
            return Missed(answer)
        assert gathered is not None
        return InTime(gathered, answer)

    def _missed(self, offer: PushOffer, gathered: Round | None) -> bool:
        """Whether an offer is one for a round that is over, and may be carried."""
        state, fragment = self._state, offer.anchor.fragment
        if not state.settings.late_carry or offer.steps == 0 or not state.phase.carries:
            return False
        if not 0 <= fragment < state.fragments or (offer.t - 1) % state.fragments != fragment:
            return False
        if gathered is None:
            return 0 < offer.t <= state.committed
        return gathered.stage is not Stage.GATHERING and gathered.attempt == offer.attempt

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

    def _answer(self, member: Member, offer: PushOffer) -> Answer:
        """A good offer, as a round keeps it."""
        state = self._state
        assert state.values is not None
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

    def decline(self, member: Member, offer: PushOffer, declined: Declined) -> None:
        """The island learns why its offer is not taken, and so does the tape."""
        state, reason = self._state, declined.reason
        answer = PushAnswer(state.session, member.generation, offer.push, Outcome.REFUSED, reason, declined.anchor_held)
        state.send(member, answer)
        fragment = offer.anchor.fragment
        state.tape(
            tape_lines.Refused(island=member.island, push=offer.push[:TEXT_MAX], fragment=fragment, reason=reason)
        )
