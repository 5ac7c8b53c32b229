"""How a push enters the memory and leaves it: its anchor, its upload, and a line of both ends."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import Dropped, PullClosed, PushOffer, ValueName
from syncer.brain.memory.pushes import close_pulls, drop_answer, take
from syncer.brain.memory.round import Answer, Round
from syncer.brain.memory.state import State
from syncer.events import DropUpload, Effect, OpenUpload, Send, WriteTape
from tests.syncer.brain.memory.test_state import made

ANCHOR = ValueName(1, 3, "d3")


def offer(steps: int) -> PushOffer:
    return PushOffer("s", "g0", "p", 4, 1, ANCHOR, steps, 10 * steps, 20)


def taken(state: State, steps: int) -> tuple[Answer, list[Effect]]:
    answer = take(state, state.roster.islands[0], offer(steps), lag=2)
    effects, state.effects = state.effects, []
    return answer, effects


def test_push_that_is_taken_has_its_anchor_held_a_line_and_an_upload() -> None:
    state = made(0)
    answer, effects = taken(state, 5)
    assert (answer.push, answer.island, answer.lag, answer.steps, answer.tokens) == ("p", 0, 2, 5, 50)
    assert effects == [
        WriteTape(
            tape_lines.Pushed(
                island=0, generation="g0", push="p", t=4, fragment=1, base_version=3, base_digest="d3", steps=5,
                tokens=50, capture_step=20,
            )
        ),
        OpenUpload("p", "g0", 1, Encoding(state.settings.delta_encoding)),
    ]  # fmt: skip
    assert state.held.holds(0, ANCHOR)


def test_push_without_steps_is_no_work_and_has_neither() -> None:
    state = made(0)
    answer, effects = taken(state, 0)
    assert answer.empty and (answer.lag, effects) == (0, []) and not state.held.holds(0, ANCHOR)


@pytest.mark.parametrize("freed", [False, True])
@pytest.mark.parametrize("steps", [5, 0])
def test_push_that_is_dropped_gives_its_anchor_back_and_its_island_and_the_tape_are_told(
    freed: bool, steps: int
) -> None:
    state = made(0)
    answer, _ = taken(state, steps)
    missed = Round(4, 1, 0.0, members={0: "g0"})
    state.uploads["p"] = (missed, 0)
    drop_answer(state, missed, answer, "too late", freed=freed)
    upload = [] if freed or not steps else [DropUpload("p", "too late")]
    assert state.effects == [
        *upload,
        Send("c0", Dropped("s", "g0", "p", "too late", ANCHOR if steps else None)),
        WriteTape(tape_lines.Dropped(island=0, push="p", t=4, fragment=1, reason="too late")),
    ]
    assert state.uploads == {} and not state.held.holds(0, ANCHOR)


def test_only_members_that_have_not_answered_are_told_that_the_pull_is_closed() -> None:
    state = made(0, 1)
    gathered = Round(4, 1, 0.0, members={0: "g0", 1: "g1", 2: "g2"}, pending={2: None, 1: None, 0: None})
    gathered.answers[0], _ = taken(state, 5)
    close_pulls(state, gathered)
    assert state.effects == [Send("c1", PullClosed("s", "g1", 4, 1))], "2 is gone, 0 has answered"
