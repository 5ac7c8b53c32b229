"""Pushes that missed their round: kept until the next round of their fragment, and merged there.

An otherwise good push misses its round when the round closes before the push is offered or complete. What it learned is
worth as much a round later, measured from the anchor it names, so it goes on and is merged then, with the discount the
settings ask for. The version it missed by being late is not held against it: its lag may be one more than that of an
answer in time.

Knows nothing of how rounds gather. Invariants: an island has at most one late or carried push per fragment; the anchor
of one is held until it is merged or dropped; together they have at most `carried_bytes_max`.
"""

from __future__ import annotations

from dataclasses import replace

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.chunks import Encoding, encoded_bytes
from swift_diloco.core.formats.messages import Outcome, PushAnswer, PushOffer
from swift_diloco.core.layout.fragments import fragment_elements
from syncer.brain.memory.history import Standing
from syncer.brain.memory.roster import Member
from syncer.brain.memory.round import Answer, Late, Round, Stage
from syncer.brain.memory.state import State, drop_answer
from syncer.events import OpenUpload


class Carrying:
    """Keeps late pushes."""

    def __init__(self, state: State) -> None:
        self._state = state

    # -- They miss their round ----------------------------------------------------------------------------------------

    def missed(self, closed: Round, answer: Answer) -> bool:
        """A push is not complete while its round closes; whether it may go on."""
        state = self._state
        if not state.settings.late_carry or state.final or self._has(answer.island, closed.fragment):
            return False
        if not self._fits(closed.fragment):
            return False
        del state.uploads[answer.push]
        answer.carried = True
        state.late[answer.push] = Late(answer, closed.fragment, closed.t)
        return True

    def takes(self, offer: PushOffer, gathered: Round | None) -> bool:
        """Whether an offer is one for a round that is over, and may be carried."""
        state, fragment = self._state, offer.anchor.fragment
        if not state.settings.late_carry or offer.steps == 0 or state.final or state.stopping or state.values is None:
            return False
        if not 0 <= fragment < state.fragments or (offer.t - 1) % state.fragments != fragment:
            return False
        if gathered is None:
            return 0 < offer.t <= state.committed
        return gathered.stage is not Stage.GATHERING and gathered.attempt == offer.attempt

    def refusal(self, member: Member, offer: PushOffer) -> str | None:
        """Why a late offer is not taken; None for a good one."""
        fragment = offer.anchor.fragment
        if self._has(member.island, fragment):
            return f"outer step {offer.t} is over, and a late push of fragment {fragment} is held already"
        answers = (r.answers.get(member.island) for r in self._state.rounds.values() if r.t == offer.t)
        if any(answer is not None for answer in answers):
            return f"outer step {offer.t} has an answer of island {member.island} already"
        if (reason := self._too_old(offer.t, offer)) is not None:
            return reason
        most = self._state.settings.carried_bytes_max
        return None if self._fits(fragment) else f"late pushes take carried_bytes_max = {most} bytes already"

    def admit(self, offer: PushOffer, answer: Answer) -> None:
        """Take a late offer; its upload begins."""
        state = self._state
        answer.carried = True
        state.held.gather(answer.island, answer.anchor, answer.capture_step)
        state.late[answer.push] = Late(answer, offer.anchor.fragment, offer.t)
        encoding = state.settings.delta_encoding
        state.do(OpenUpload(answer.push, answer.generation, offer.anchor.fragment, encoding))

    def _has(self, island: int, fragment: int) -> bool:
        if (island, fragment) in self._state.carried:
            return True
        late = self._state.late.values()
        return any(each.answer.island == island and each.fragment == fragment for each in late)

    def _too_old(self, t: int, push: PushOffer | Answer) -> str | None:
        """Why a push that missed outer step `t` can be merged no more."""
        values, settings = self._state.values, self._state.settings
        assert values is not None
        standing = values.standing(push.anchor)
        if standing in (Standing.FORKED, Standing.NEWER):
            return f"outer step {t} is over, and the anchor (version {push.anchor.version}) is {standing.value}"
        if (lag := values.lag(push.anchor)) > settings.max_base_lag + 1:
            return f"it missed outer step {t}, and its anchor is {lag} versions behind by now"
        return None

    # -- They arrive --------------------------------------------------------------------------------------------------

    def completed(self, upload: str, payload_bytes: int) -> bool:
        """A late push is complete: it is carried. Whether the upload was one."""
        state = self._state
        late = state.late.pop(upload, None)
        if late is None:
            return False
        answer = late.answer
        answer.complete, answer.payload_bytes = True, payload_bytes
        if (reason := self._too_old(late.t, answer)) is not None:
            drop_answer(state, late, answer, reason)
            return True
        state.carried[answer.island, late.fragment] = late
        message = PushAnswer(state.session, answer.generation, answer.push, Outcome.CARRIED)
        state.send_to(answer.island, answer.generation, message)
        state.tape(tape_lines.Carried(island=answer.island, push=answer.push, t=late.t, fragment=late.fragment))
        self._make_room(state.settings.carried_bytes_max)
        return True

    def failed(self, upload: str, reason: str) -> bool:
        """A late push will not come. Whether the upload was one."""
        late = self._state.late.pop(upload, None)
        if late is None:
            return False
        drop_answer(self._state, late, late.answer, reason, freed=True)
        return True

    def ended(self, member: Member) -> None:
        """A generation ended: its late pushes that are not complete are gone with it."""
        for push, late in list(self._state.late.items()):
            if late.answer.generation == member.generation:
                del self._state.late[push]
                drop_answer(self._state, late, late.answer, "its generation ended before it was complete", freed=True)

    def _fits(self, fragment: int) -> bool:
        """Whether there is room for one more, once the oldest have made some."""
        room = self._state.settings.carried_bytes_max - self._size(fragment)
        self._make_room(room)
        return self._held() <= room

    def _held(self) -> int:
        """Bytes of what is carried and of what will be."""
        carried = sum(late.answer.payload_bytes for late in self._state.carried.values())
        return carried + sum(self._size(late.fragment) for late in self._state.late.values())

    def _size(self, fragment: int) -> int:
        """Bytes of a push."""
        state = self._state
        assert state.layout is not None and state.plan is not None
        elements = fragment_elements(state.layout, state.plan, fragment)
        return encoded_bytes(elements, Encoding(state.settings.delta_encoding))

    def _make_room(self, most: int) -> None:
        """Drop the oldest beyond `most` bytes. What is being merged is free again soon."""
        state = self._state
        merging = {answer.push for each in state.rounds.values() for answer in each.merging}
        for key, late in list(state.carried.items()):
            if self._held() <= most:
                return
            if late.answer.push not in merging:
                bound = state.settings.carried_bytes_max
                self._drop(key, f"late pushes take more than carried_bytes_max = {bound} bytes, and it is the oldest")

    # -- They are merged ----------------------------------------------------------------------------------------------

    def ride_along(self, closing: Round) -> list[Answer]:
        """The carried pushes that are merged with a closing round. They stay carried until its commit."""
        state, settings = self._state, self._state.settings
        riders = []
        for key, late in list(state.carried.items()):
            if late.fragment != closing.fragment:
                continue
            assert state.values is not None
            if (reason := self._too_old(late.t, late.answer)) is not None:
                self._drop(key, reason)
                continue
            lag = state.values.lag(late.answer.anchor)
            weight = late.answer.weight * settings.late_discount**lag
            if weight > 0:
                riders.append(replace(late.answer, lag=lag, weight=weight))
            else:
                self._drop(key, f"with {lag} versions of lag its weight is 0")
        return riders

    def merged(self, fragment: int, answer: Answer) -> None:
        """A carried push is in a value, or was dropped with its round."""
        del self._state.carried[answer.island, fragment]

    def give_up(self, reason: str) -> None:
        """No round will come any more."""
        for key in list(self._state.carried):
            self._drop(key, reason)
        for push, late in list(self._state.late.items()):
            del self._state.late[push]
            drop_answer(self._state, late, late.answer, reason)

    def _drop(self, key: tuple[int, int], reason: str) -> None:
        late = self._state.carried.pop(key)
        drop_answer(self._state, late, late.answer, reason)
