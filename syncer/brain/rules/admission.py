"""Whether an offered push is taken: for its round, late for the next one, or not at all, and why.

Judging changes nothing: the order of the rule (4.6) is the order of the questions, and who asked acts on the answer.
Nothing that an offer would push aside is dropped before the offer is found good.
"""

from __future__ import annotations

from dataclasses import dataclass

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import Outcome, PushAnswer, PushOffer
from syncer.brain.memory.history import Place
from syncer.brain.memory.roster import TEXT_MAX, Member
from syncer.brain.memory.round import Round, Stage
from syncer.brain.memory.state import State
from syncer.brain.rules.late_pushes import LatePushes

COUNT_MAX = 2**53
"""Largest step or token count: beyond it a count is no exact float, and no island lives that long."""


@dataclass(frozen=True)
class InTime:
    """The offer is taken as an answer of its round, from an anchor so many versions behind."""

    gathered: Round
    lag: int


@dataclass(frozen=True)
class Missed:
    """The round is over; the offer is taken for the next one of its fragment."""

    lag: int


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
        if reason is None and not late:
            reason = self._no_pull(member, offer, gathered)
        if reason is not None:
            return Declined(reason)
        assert state.values is not None, "there are rounds, but no values"
        place = state.values.place(offer.anchor)
        if late:
            reason = self._late.refusal(member, offer, place)
        elif gathered is not None:
            reason = self._no_answer(member, offer, gathered, place)
        if reason is not None:
            return Declined(reason)
        if offer.steps > 0 and state.held.holds(member.island, offer.anchor):
            held = f"a delta from this anchor (version {offer.anchor.version}) is held already"
            return Declined(held, anchor_held=True)
        return Missed(place.lag) if late or gathered is None else InTime(gathered, place.lag)

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

    def _no_pull(self, member: Member, offer: PushOffer, gathered: Round | None) -> str | None:
        """Why an offer answers no pull of an open round; None for one that does."""
        if gathered is None or gathered.fragment != offer.anchor.fragment:
            return f"outer step {offer.t} is not open for fragment {offer.anchor.fragment}"
        if gathered.stage is not Stage.GATHERING or gathered.attempt != offer.attempt:
            return f"attempt {offer.attempt} of outer step {offer.t} is over"
        if gathered.members.get(member.island) != member.generation:
            return f"island {member.island} was no member when outer step {offer.t} was launched"
        return None

    def _no_answer(self, member: Member, offer: PushOffer, gathered: Round, place: Place) -> str | None:
        """Why an offer for an open round is not taken; None for a good one."""
        most = self._state.settings.max_base_lag
        if offer.steps > 0:
            if place.foreign:
                where = place.standing.value
                return f"the anchor (version {offer.anchor.version}) is {where}; install the present one first"
            if place.lag > most:
                return f"the anchor is {place.lag} versions behind; at most {most} are allowed"
        if member.island in gathered.answers:
            return f"outer step {offer.t} has an answer of island {member.island} already"
        return None

    def decline(self, member: Member, offer: PushOffer, declined: Declined) -> None:
        """The island learns why its offer is not taken, and so does the tape."""
        state, reason = self._state, declined.reason
        answer = PushAnswer(state.session, member.generation, offer.push, Outcome.REFUSED, reason, declined.anchor_held)
        state.send(member, answer)
        fragment = offer.anchor.fragment
        state.tape(
            tape_lines.Refused(island=member.island, push=offer.push[:TEXT_MAX], fragment=fragment, reason=reason)
        )
