"""The coordinator's memory: its phase, what it counts, and to whom it speaks."""

from __future__ import annotations

from typing import Any

import pytest

from swift_diloco.core.formats.messages import Refused, ValueName
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from syncer.brain.memory.phase import PROVIDER, Phase
from syncer.brain.memory.roster import Member
from syncer.brain.memory.state import State
from syncer.events import Log, Send
from tests.syncer.brain.memory.test_roster import BOX, hello

VALUES: Any = object()
"""Values are there; the phase does not look into them."""


def member(state: State, island: int) -> Member:
    joined = state.roster.welcome(hello(island), f"c{island}", (f"g{island}", "secret"), now=0.0)
    state.roster.bind_rank(joined, 0, f"b{island}", (BOX,))
    state.roster.admit(joined, fragments=2)
    state.validate()
    return joined


def made(*islands: int, **settings: Any) -> State:
    state = State(SyncerSettings(**settings), "s", lambda: "token", plan=FragmentPlan(((0,), (1,))))
    for island in islands:
        member(state, island)
    return state


@pytest.mark.parametrize(
    ("islands", "known", "phase"),
    [
        ((), {}, Phase.JOINING),
        ((PROVIDER,), {}, Phase.JOINING),
        ((PROVIDER + 1, PROVIDER + 2), {}, Phase.JOINING),
        ((PROVIDER, PROVIDER + 1), {}, Phase.INIT),
        ((PROVIDER,), {"values": VALUES}, Phase.PAUSED),
        ((PROVIDER, PROVIDER + 1), {"values": VALUES}, Phase.TRAINING),
        ((PROVIDER, PROVIDER + 1), {"values": VALUES, "last_t": 4}, Phase.FINISHING),
        ((PROVIDER,), {"values": VALUES, "stopping": True}, Phase.STOPPING),
        ((), {"values": VALUES, "stopping": True, "final": (ValueName(0, 1, "d"),)}, Phase.FINAL),
        ((), {"exited": True, "stopping": True, "final": (ValueName(0, 1, "d"),)}, Phase.ENDED),
    ],
)
def test_phase_follows_from_what_is_known(islands: tuple[int, ...], known: dict[str, Any], phase: Phase) -> None:
    state = made(*islands, expected_islands=2, min_islands=2)
    for name, value in known.items():
        setattr(state, name, value)
    assert state.phase is phase


@pytest.mark.parametrize(("expected_islands", "min_islands", "expected"), [(3, 1, 3), (1, 2, 2)])
def test_cold_start_needs_as_many_as_any_setting_asks_for(
    expected_islands: int, min_islands: int, expected: int
) -> None:
    assert made(expected_islands=expected_islands, min_islands=min_islands).expected == expected


@pytest.mark.parametrize(
    ("awaited", "returning", "done", "idle"),
    [(set(), True, True, False), ({5}, True, False, True), ({5}, False, False, False), ({5}, False, True, True)],
)
def test_rounds_wait_for_awaited_islands_for_a_moment_or_while_the_others_are_done(
    awaited: set[int], returning: bool, done: bool, idle: bool
) -> None:
    state = made(*(() if done else (0,)))
    state.awaited, state.returning = awaited, returning
    assert state.idle is idle


def test_island_whose_link_is_closed_and_generation_that_is_over_are_told_nothing() -> None:
    state = made(0, 1)
    linked, lost = (state.roster.islands[island] for island in (0, 1))
    lost.linked = False
    message = Refused("s", "g", "no")
    state.send(linked, message)
    state.send(lost, message)
    state.send_to(0, "g0", message)
    state.send_to(0, "an older one", message)
    state.send_to(7, "g7", message)
    state.log("info", "told")
    assert state.effects == [Send("c0", message), Send("c0", message), Log("info", "told")]
