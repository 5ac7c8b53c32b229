"""The finish, the final cut, the budget, and the graceful stop in each of its phases."""

from __future__ import annotations

from typing import Any

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.manifest import SavedState
from swift_diloco.core.formats.messages import (
    BudgetReached,
    FinalCut,
    Refused,
    Saved,
    ValueName,
    Welcome,
)
from swift_diloco.core.layout.fragments import FragmentPlan
from syncer.brain.rules.finish import RETURN_S
from syncer.events import Exit, Restored
from tests.syncer.desk import SESSION, Desk, finished, initial_names, messages

# -- Finish -----------------------------------------------------------------------------------------------------------


def test_each_fragment_gets_one_round_after_all_are_done() -> None:
    desk = finished(1)
    assert desk.pulled(0) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert desk.tape(tape_lines.Final) == [tape_lines.Final(t=4, versions=(0, 0))]


def test_one_done_island_does_not_end_the_run_of_the_others() -> None:
    desk = Desk(expected_islands=2)
    desk.ready(2)
    desk.done(0)
    for t in range(1, 9):
        desk.push(1, t)
        desk.merged(t)
    assert not desk.tape(tape_lines.Final) and desk.brain.status().phase == "training"


def test_last_rounds_are_launched_without_pace() -> None:
    desk = Desk(launch_floor_s=1000.0)
    desk.ready(1)
    desk.done(0)
    assert desk.pulled(0) == [(1, 1), (2, 1)]
    desk.empty(0, 1)
    assert desk.pulled(0)[2:] == [(3, 1)]


def test_an_island_that_restarts_takes_the_finish_back() -> None:
    desk = Desk(expected_islands=2, reconnect_grace_s=0.0)
    desk.ready(2)
    desk.done(0)
    desk.done(1)
    desk.gone(1)
    assert desk.brain.status().phase == "finishing"
    desk.join(1, life=2)
    assert desk.brain.status().phase == "training"
    for t in range(1, 7):
        desk.empty(0, t)
        desk.push(1, t, life=2)
        desk.merged(t)
    assert not desk.tape(tape_lines.Final)
    desk.done(1, life=2)
    assert desk.brain.status().phase == "finishing"


def test_the_finish_waits_for_min_islands() -> None:
    desk = Desk(min_islands=2, reconnect_grace_s=0.0)
    desk.ready(2)
    desk.done(0)
    desk.gone(1)
    assert desk.brain.status().phase == "paused"


def resumed(**settings: Any) -> Desk:
    """A syncer that goes on after outer step 1 of islands 0 and 1."""
    desk = Desk(**settings)
    names = (ValueName(0, 1, "digest-1"), ValueName(1, 0, "digest-1-0"))
    first = initial_names(2)
    saved = SavedState(
        run="run",
        step=1,
        fingerprint=desk.layout.fingerprint,
        values=names,
        history=((first[0], names[0]), (names[1],)),
        merged=((0, (first[0],)), (1, (first[0],))),
        contract={},
    )
    desk.take(Restored(saved, desk.layout, FragmentPlan(((0,), (1,)))))
    return desk


def resumed_with_island_0_done(**settings: Any) -> Desk:
    """Island 0 is back, done, and has nothing to push."""
    desk = resumed(**settings)
    desk.join(0)
    desk.at(RETURN_S)
    desk.done(0)
    for t in (2, 3):
        desk.empty(0, t)
    return desk


def test_a_resumed_run_does_not_end_before_its_islands_had_time_to_dial_again() -> None:
    desk = resumed_with_island_0_done()
    assert desk.pulled(0) == [(2, 1), (3, 1)] and desk.brain.status().phase == "training"
    assert desk.brain.waiting_for() == "island 1 to join again after the restart of the syncer"
    desk.join(1)
    assert desk.brain.status().phase == "training" and desk.pulled(1) == [(4, 1), (5, 1)]
    desk.done(1)
    assert desk.brain.status().phase == "finishing"


def test_the_first_rounds_after_a_restart_wait_a_moment_for_all_to_return() -> None:
    desk = resumed()
    desk.join(0)
    assert desk.pulled(0) == [] and desk.brain.next_wakeup == RETURN_S
    assert desk.brain.waiting_for() == "island 1 to join again after the restart of the syncer"
    desk.join(1)
    assert desk.pulled(0) == desk.pulled(1) == [(2, 1), (3, 1)]


def test_the_first_rounds_after_a_restart_do_not_wait_longer() -> None:
    desk = resumed()
    desk.join(0)
    desk.at(RETURN_S)
    assert desk.pulled(0) == [(2, 1), (3, 1)]


def test_a_resumed_run_ends_without_an_island_that_does_not_dial_again_within_a_lease() -> None:
    desk = resumed_with_island_0_done(island_lease_s=50.0)
    desk.now = 40.0
    desk.beat(0, 100)
    desk.at(49.0)
    assert desk.brain.status().phase == "training"
    desk.at(50.0)
    assert desk.brain.status().phase == "finishing" and desk.pulled(0)[2:] == [(4, 1), (5, 1)]


def test_a_restarted_island_is_given_the_final_cut_and_nothing_else() -> None:
    desk = finished(2)
    desk.gone(1)
    effects = desk.join(1, life=2)
    welcome, _, _, cut = messages(effects)
    assert isinstance(welcome, Welcome) and welcome.values == initial_names(2)
    assert cut == FinalCut(SESSION, desk.generation[1], initial_names(2))
    desk.saved(0)
    assert desk.say(1, Saved, life=2)[-1] == Exit(0, "every island has saved the final cut", finished=True)


def test_a_dead_island_is_waited_for_until_the_linger_is_over() -> None:
    desk = finished(2, final_linger_s=50.0, reconnect_grace_s=0.0, island_lease_s=1e6)
    desk.saved(0)
    desk.gone(1)
    assert desk.brain.waiting_for() == "island 1 to save the final cut"
    assert desk.at(49.0) == []
    assert desk.at(50.0) == [
        Exit(0, "islands [1] did not say that they had saved within 50 s", finished=True, untold=(1,))
    ]


def test_an_island_that_leaves_after_the_cut_is_not_waited_for() -> None:
    desk = finished(2)
    desk.saved(0)
    assert desk.leave(1)[-1] == Exit(0, "every island has saved the final cut or left", finished=True)


def test_saved_twice_ends_nothing_twice() -> None:
    desk = finished(2)
    assert desk.saved(0) == []
    assert [type(message) for message in messages(desk.saved(0))] == [Refused]
    assert desk.brain.waiting_for() == "island 1 to save the final cut"


def test_the_budget_is_told_to_all_and_to_those_who_join_later() -> None:
    desk = Desk(outer_steps_max=2)
    desk.ready(1)
    for t in (1, 2):
        desk.push(0, t)
        desk.merged(t)
    assert desk.sent(0, BudgetReached) == [BudgetReached(SESSION, "k1", 2)]
    assert desk.pulled(0) == [(1, 1), (2, 1)]
    assert messages(desk.join(1))[-1] == BudgetReached(SESSION, desk.generation[1], 2)
    desk.done(0)
    desk.done(1)
    assert desk.pulled(0) == [(1, 1), (2, 1), (3, 1), (4, 1)]


# -- Stop -------------------------------------------------------------------------------------------------------------
