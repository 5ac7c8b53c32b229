"""How a push enters the memory and leaves it: its anchor, its upload, and a line of both ends."""

from __future__ import annotations

import msgspec
import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import Dropped, PullClosed, PushOffer, ValueName
from syncer.brain.memory.history import Values
from syncer.brain.memory.pushes import close_pulls, drop_answer, mute_in, release_leaving, take
from syncer.brain.memory.round import Answer, Late, Round
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


def test_a_dropped_push_that_a_checkpoint_has_stays_held_until_none_has_it() -> None:
    state = made(0)
    answer, _ = taken(state, 5)
    answer.complete = answer.carried = True
    state.durable_pushes = frozenset({"p"})
    drop_answer(state, Late(answer, 1, 4), answer, "too old")
    assert state.effects == [DropUpload("p", "too old")]
    assert state.held.holds(0, ANCHOR) and state.checkpoint_wanted
    state.effects, state.checkpoint_wanted = [], False
    release_leaving(state)
    assert state.effects == [] and state.checkpoint_wanted and state.held.holds(0, ANCHOR)
    state.durable_pushes = frozenset()
    state.checkpoint_wanted = False
    release_leaving(state)
    assert state.effects == [
        Send("c0", Dropped("s", "g0", "p", "too old", ANCHOR)),
        WriteTape(tape_lines.Dropped(island=0, push="p", t=4, fragment=1, reason="too old")),
    ]
    assert not state.held.holds(0, ANCHOR) and not state.checkpoint_wanted and not state.leaving


def test_a_finished_run_releases_what_a_checkpoint_still_has() -> None:
    state = made(0)
    answer, _ = taken(state, 5)
    state.durable_pushes = frozenset({"p"})
    drop_answer(state, Late(answer, 1, 4), answer, "void", freed=True)
    assert state.effects == []
    release_leaving(state, finished=True)
    assert not state.held.holds(0, ANCHOR) and not state.leaving


@pytest.mark.parametrize(
    ("version", "own", "mute"), [(3, "", {0}), (2, "", set()), (3, "arriving", {0}), (3, "complete", set())]
)
def test_an_island_is_mute_while_its_push_from_the_present_value_is_carried(
    version: int, own: str, mute: set[int]
) -> None:
    state = made(0)
    state.values = Values((ValueName(0, 0, "d0"), ValueName(1, 0, "d0")))
    for number in (1, 2, 3):
        state.values.publish(ValueName(1, number, f"d{number}"))
    answer, _ = taken(state, 5)
    answer.anchor = ValueName(1, version, f"d{version}")
    state.carried[0, 1] = Late(answer, 1, 4)
    gathered = Round(6, 1, 0.0)
    gathered.capture([(0, "g0")])
    if own:
        gathered.admit(msgspec.structs.replace(answer, push="q"))
        if own == "complete":
            gathered.finish(0, 16)
    assert set(mute_in(state, gathered)) == mute
    assert not mute_in(state, Round(5, 0, 0.0))
