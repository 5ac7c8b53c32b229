"""Pushes that missed their round: kept until the next round of their fragment, and merged there.

An otherwise good push misses its round when the round closes before the push is offered or complete. What it learned is
worth as much a round later, measured from the anchor it names, so it goes on and is merged then, with the discount the
settings ask for. The version it missed by being late is not held against it: its lag may be one more than that of an
answer in time.

Knows nothing of how rounds gather. Invariants: an island has at most one late or carried push per fragment; the anchor
of one is held until it is merged or dropped; together they have at most `carried_bytes_max`.
"""

from __future__ import annotations

import msgspec

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.chunks import Encoding, encoded_bytes
from swift_diloco.core.formats.messages import Outcome, PushAnswer, PushOffer, ValueName
from swift_diloco.core.layout.fragments import fragment_elements
from syncer.brain.memory.history import Place
from syncer.brain.memory.pushes import drop_answer, release_leaving, take
from syncer.brain.memory.roster import Member
from syncer.brain.memory.round import Answer, Late, Round
from syncer.brain.memory.state import State
from syncer.events import UploadCompleted, UploadFailed, UploadNews


class LatePushes:
    """Keeps late pushes."""

    def __init__(self, state: State) -> None:
        self._state = state

    # -- They miss their round ----------------------------------------------------------------------------------------

    def may_go_on(self, closed: Round, answer: Answer) -> bool:
        """Whether a push that is not complete while its round closes can be taken for the next one."""
        state, fragment = self._state, closed.fragment
        carries = state.settings.late_carry and state.phase.carries
        return carries and not self._has(answer.island, fragment) and self._has_room(fragment)

    def go_on(self, closed: Round, answer: Answer) -> None:
        """A push whose round closes before it is complete goes on towards the next one."""
        self._make_room(self._size(closed.fragment))
        del self._state.uploads[answer.push]
        self._expect(answer, closed.t)

    def refusal(self, member: Member, offer: PushOffer, place: Place) -> str | None:
        """Why a late offer is not taken; None for a good one."""
        fragment = offer.anchor.fragment
        if self._has(member.island, fragment):
            return f"outer step {offer.t} is over, and a late push of fragment {fragment} is held already"
        answers = (r.answers.get(member.island) for r in self._state.rounds.values() if r.t == offer.t)
        if any(answer is not None for answer in answers):
            return f"outer step {offer.t} has an answer of island {member.island} already"
        if (reason := self._too_old(offer.t, offer.anchor, place)) is not None:
            return reason
        most = self._state.settings.carried_bytes_max
        return None if self._has_room(fragment) else f"late pushes take carried_bytes_max = {most} bytes already"

    def admit(self, member: Member, offer: PushOffer, lag: int) -> None:
        """Take a late offer that was found good; its upload begins when the oldest have made room for it."""
        self._make_room(self._size(offer.anchor.fragment))
        self._expect(take(self._state, member, offer, lag), offer.t)

    def _expect(self, answer: Answer, t: int) -> None:
        """A late push is on its way."""
        answer.carried = True
        self._state.late[answer.push] = Late(answer, answer.anchor.fragment, t)

    def _has(self, island: int, fragment: int) -> bool:
        return (island, fragment) in self._state.carried or self._state.is_late(island, fragment)

    def _too_old(self, t: int, anchor: ValueName, place: Place) -> str | None:
        """Why a push from an anchor at `place` that missed outer step `t` can be merged no more."""
        if place.foreign:
            return f"outer step {t} is over, and the anchor (version {anchor.version}) is {place.standing.value}"
        if place.lag > self._state.settings.max_base_lag + 1:
            return f"it missed outer step {t}, and its anchor is {place.lag} versions behind by now"
        return None

    def _place(self, anchor: ValueName) -> Place:
        assert self._state.values is not None
        return self._state.values.place(anchor)

    # -- They arrive --------------------------------------------------------------------------------------------------

    def transferred(self, event: UploadNews) -> bool:
        """News of the upload of a late push; whether it is complete. How it goes on is of no matter."""
        match event:
            case UploadCompleted(upload, payload_bytes):
                self._completed(self._state.late.pop(upload), payload_bytes)
                return True
            case UploadFailed(upload, reason):
                late = self._state.late.pop(upload)
                drop_answer(self._state, late, late.answer, reason, freed=True)
        return False

    def _completed(self, late: Late, payload_bytes: int) -> None:
        """A late push is complete: it is carried, unless it has become too old."""
        state, answer = self._state, late.answer
        answer.complete, answer.payload_bytes = True, payload_bytes
        if (reason := self._too_old(late.t, answer.anchor, self._place(answer.anchor))) is not None:
            drop_answer(state, late, answer, reason)
            return
        state.carried[answer.island, late.fragment] = late
        message = PushAnswer(state.session, answer.generation, answer.push, Outcome.CARRIED)
        state.send_to(answer.island, answer.generation, message)
        state.tape(tape_lines.Carried(island=answer.island, push=answer.push, t=late.t, fragment=late.fragment))
        self._make_room(0)

    def ended(self, member: Member) -> None:
        """A generation ended: its late pushes that are not complete are gone with it."""
        for push, late in list(self._state.late.items()):
            if late.answer.generation == member.generation:
                del self._state.late[push]
                drop_answer(self._state, late, late.answer, "its generation ended before it was complete", freed=True)

    def _has_room(self, fragment: int) -> bool:
        """Whether one more would find room, were all dropped that may be. Drops nothing."""
        stays = self._held() - sum(late.answer.payload_bytes for late in self._droppable().values())
        return stays + self._size(fragment) <= self._state.settings.carried_bytes_max

    def _held(self) -> int:
        """Bytes of what is carried and of what will be."""
        carried = sum(late.answer.payload_bytes for late in self._state.carried.values())
        return carried + sum(self._size(late.fragment) for late in self._state.late.values())

    def _droppable(self) -> dict[tuple[int, int], Late]:
        """What is carried and not being merged (that is free again soon), the oldest first."""
        merging = {answer.push for each in self._state.rounds.values() for answer in each.merging}
        return {key: late for key, late in self._state.carried.items() if late.answer.push not in merging}

    def _size(self, fragment: int) -> int:
        """Bytes of a push."""
        state = self._state
        assert state.layout is not None and state.plan is not None
        elements = fragment_elements(state.layout, state.plan, fragment)
        return encoded_bytes(elements, Encoding(state.settings.delta_encoding))

    def _make_room(self, more: int) -> None:
        """Drop the oldest until `more` bytes find room."""
        bound = self._state.settings.carried_bytes_max
        for key in self._droppable():
            if self._held() + more <= bound:
                return
            self._drop(key, f"late pushes take more than carried_bytes_max = {bound} bytes, and it is the oldest")

    # -- They are merged ----------------------------------------------------------------------------------------------

    def contribute(self, closing: Round) -> list[Answer]:
        """The carried pushes that are merged with a closing round; those that can be no more are dropped.

        They stay carried until the commit.
        """
        state, settings = self._state, self._state.settings
        contributions = []
        for key, late in list(state.carried.items()):
            if late.fragment != closing.fragment:
                continue
            place = self._place(late.answer.anchor)
            if (reason := self._too_old(late.t, late.answer.anchor, place)) is not None:
                self._drop(key, reason)
                continue
            weight = late.answer.weight * settings.late_discount**place.lag
            if weight > 0:
                contributions.append(msgspec.structs.replace(late.answer, lag=place.lag, weight=weight))
            else:
                self._drop(key, f"with {place.lag} versions of lag its weight is 0")
        return contributions

    def merged(self, fragment: int, answer: Answer) -> None:
        """A carried push is in a value, or was dropped with its round."""
        del self._state.carried[answer.island, fragment]

    def drop_all(self, reason: str) -> None:
        """No round will come any more."""
        for key in list(self._state.carried):
            self._drop(key, reason)
        for push, late in list(self._state.late.items()):
            del self._state.late[push]
            drop_answer(self._state, late, late.answer, reason)
        release_leaving(self._state, finished=True)

    def _drop(self, key: tuple[int, int], reason: str) -> None:
        late = self._state.carried.pop(key)
        drop_answer(self._state, late, late.answer, reason)
