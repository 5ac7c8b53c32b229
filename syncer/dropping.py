"""How a push that was taken is dropped: its anchor is released, its island told, and the tape knows why."""

from __future__ import annotations

from swift_diloco.core.formats.messages import Dropped
from syncer.events import DropUpload
from syncer.rounds import Answer, Late, Round
from syncer.state import State


def drop_answer(state: State, missed: Round | Late, answer: Answer, reason: str, *, freed: bool = False) -> None:
    """A push that was held or arriving is dropped, its anchor released. `freed`: its upload is forgotten elsewhere."""
    state.uploads.pop(answer.push, None)
    if not answer.empty:
        state.held.release(answer.island, answer.anchor)
        if not freed:
            state.do(DropUpload(answer.push, reason))
    member = state.roster.islands.get(answer.island)
    if member is not None:
        # The island may have joined again since: its present generation was told at Welcome that the anchor is held.
        anchor = None if answer.empty else answer.anchor
        state.send(member, Dropped(state.session, member.generation, answer.push, reason, anchor))
    state.tape("dropped", island=answer.island, push=answer.push, t=missed.t, fragment=missed.fragment, reason=reason)
