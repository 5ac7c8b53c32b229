"""How a push enters the memory, and how it leaves it without being merged.

Which push, and whether, is decided elsewhere.

Invariants: the anchor of a push is held from here to there, and the tape has a line of both ends. A hold is released
only when no durable state has the push any more: a crash would bring it back beside what its island sends instead.
"""

from __future__ import annotations

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import Dropped, PullClosed, PushOffer
from syncer.brain.memory.pacing import weight_of
from syncer.brain.memory.roster import Member
from syncer.brain.memory.round import Answer, Late, Leaving, Round
from syncer.brain.memory.state import State
from syncer.events import DropUpload, OpenUpload


def take(state: State, member: Member, offer: PushOffer, lag: int) -> Answer:
    """A push is admitted: its anchor is held and its upload begins. One without steps is no work and has neither."""
    answer = Answer(
        push=offer.push,
        island=member.island,
        generation=member.generation,
        anchor=offer.anchor,
        lag=lag if offer.steps else 0,
        steps=offer.steps,
        tokens=offer.tokens,
        capture_step=offer.capture_step,
        weight=weight_of(state.settings.weights, offer.steps, offer.tokens),
        progressed_at=state.now,
    )
    if not answer.empty:
        fragment = offer.anchor.fragment
        state.tape(
            tape_lines.Pushed(
                island=member.island,
                generation=member.generation,
                push=offer.push,
                t=offer.t,
                fragment=fragment,
                base_version=offer.anchor.version,
                base_digest=offer.anchor.digest,
                steps=offer.steps,
                tokens=offer.tokens,
                capture_step=offer.capture_step,
            )
        )
        state.held.gather(member.island, offer.anchor, offer.capture_step)
        member.counts_from[fragment] = offer.capture_step
        state.do(OpenUpload(offer.push, member.generation, fragment, Encoding(state.settings.delta_encoding)))
    return answer


def drop_answer(state: State, missed: Round | Late, answer: Answer, reason: str, *, freed: bool = False) -> None:
    """A push that was held or arriving is dropped, its anchor released. `freed`: its upload is forgotten elsewhere."""
    state.uploads.pop(answer.push, None)
    if not answer.empty and not freed:
        state.do(DropUpload(answer.push, reason))
    if answer.push in state.durable_pushes:  # its island learns of it when no checkpoint has it any more
        state.leaving[answer.push] = Leaving(Late(answer, missed.fragment, missed.t), reason)
        state.checkpoint_wanted = True
    else:
        _let_go(state, missed, answer, reason)


def release_leaving(state: State, *, finished: bool = False) -> None:
    """Release what was dropped and is in no durable state any more. `finished`: no round will come, so nothing can be
    merged twice."""
    for push, leaving in list(state.leaving.items()):
        if finished or push not in state.durable_pushes:
            del state.leaving[push]
            _let_go(state, leaving.late, leaving.late.answer, leaving.reason)
    state.checkpoint_wanted = state.checkpoint_wanted or bool(state.leaving)


def _let_go(state: State, missed: Round | Late, answer: Answer, reason: str) -> None:
    """The anchor is free, and the island and the tape are told."""
    if not answer.empty:
        state.held.release(answer.island, answer.anchor)
    member = state.roster.islands.get(answer.island)
    if member is not None:
        # The island may have joined again since: its present generation was told at Welcome that the anchor is held.
        anchor = None if answer.empty else answer.anchor
        if member.joined and member.generation == answer.generation:  # what it had counted counts again
            counted = member.counts_from[missed.fragment]
            member.counts_from[missed.fragment] = min(counted, answer.capture_step - answer.steps)
        state.send(member, Dropped(state.session, member.generation, answer.push, reason, anchor))
    state.tape(
        tape_lines.Dropped(island=answer.island, push=answer.push, t=missed.t, fragment=missed.fragment, reason=reason)
    )


def mute_in(state: State, gathered: Round) -> frozenset[int]:
    """Islands whose carried push will be merged with a round and is measured from the present value."""
    if not state.carried:
        return frozenset()
    assert state.values is not None, "there are rounds, but no values"
    present = state.values.present[gathered.fragment]
    complete = {island for island, answer in gathered.answers.items() if answer.complete}
    return frozenset(
        island
        for (island, fragment), late in state.carried.items()
        if fragment == gathered.fragment and late.answer.anchor == present and island not in complete
    )


def close_pulls(state: State, gathered: Round) -> None:
    """Tell those who have not answered that they need not any more."""
    for island in sorted(gathered.pending):
        if island not in gathered.answers:
            generation = gathered.members[island]
            state.send_to(island, generation, PullClosed(state.session, generation, gathered.t, gathered.fragment))
