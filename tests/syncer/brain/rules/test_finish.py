"""The finish, the final cut, the budget, and the graceful stop in each of its phases."""

from __future__ import annotations

from typing import Any

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.manifest import SavedState
from swift_diloco.core.formats.messages import (
    BudgetReached,
    Dropped,
    FinalCut,
    InitWanted,
    Pull,
    PullClosed,
    Saved,
    Stopping,
    ValueName,
    Welcome,
)
from swift_diloco.core.layout.fragments import FragmentPlan
from syncer.brain.rules.finish import RETURN_S
from syncer.events import DropUpload, Exit, Received, Send, StopRequested, WriteTape
from tests.syncer.desk import SESSION, Desk, control, initial_names, messages


def finished(islands: int = 2, **settings: Any) -> Desk:
    """A run whose final cut is out: every island was done at once and had learned nothing."""
    desk = Desk(expected_islands=islands, **settings)
    desk.ready(islands)
    for island in range(islands):
        desk.done(island)
    for t in (1, 2, 3, 4):
        for island in range(islands):
            desk.empty(island, t)
    assert desk.brain.status()["phase"] == "final"
    return desk


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
    assert not desk.tape(tape_lines.Final) and desk.brain.status()["phase"] == "training"


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
    assert desk.brain.status()["phase"] == "finishing"
    desk.join(1, life=2)
    assert desk.brain.status()["phase"] == "training"
    for t in range(1, 7):
        desk.empty(0, t)
        desk.push(1, t, life=2)
        desk.merged(t)
    assert not desk.tape(tape_lines.Final)
    desk.done(1, life=2)
    assert desk.brain.status()["phase"] == "finishing"


def test_the_finish_waits_for_min_islands() -> None:
    desk = Desk(min_islands=2, reconnect_grace_s=0.0)
    desk.ready(2)
    desk.done(0)
    desk.gone(1)
    assert desk.brain.status()["phase"] == "paused"


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
    desk.effects += desk.brain.restore(saved, desk.layout, FragmentPlan(((0,), (1,))), now=0.0)
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
    assert desk.pulled(0) == [(2, 1), (3, 1)] and desk.brain.status()["phase"] == "training"
    assert desk.brain.waiting_for() == "island 1 to join again after the restart of the syncer"
    desk.join(1)
    assert desk.brain.status()["phase"] == "training" and desk.pulled(1) == [(4, 1), (5, 1)]
    desk.done(1)
    assert desk.brain.status()["phase"] == "finishing"


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
    assert desk.brain.status()["phase"] == "training"
    desk.at(50.0)
    assert desk.brain.status()["phase"] == "finishing" and desk.pulled(0)[2:] == [(4, 1), (5, 1)]


def test_a_restarted_island_is_given_the_final_cut_and_nothing_else() -> None:
    desk = finished(2)
    desk.gone(1)
    effects = desk.join(1, life=2)
    welcome, _, _, cut = messages(effects)
    assert isinstance(welcome, Welcome) and welcome.values == initial_names(2)
    assert cut == FinalCut(SESSION, desk.generation[1], initial_names(2))
    desk.saved(0)
    assert desk.say(1, Saved, life=2)[-1] == Exit(0, "every island has saved the final cut")


def test_a_dead_island_is_waited_for_until_the_linger_is_over() -> None:
    desk = finished(2, final_linger_s=50.0, reconnect_grace_s=0.0, island_lease_s=1e6)
    desk.saved(0)
    desk.gone(1)
    assert desk.brain.waiting_for() == "island 1 to save the final cut"
    assert desk.at(49.0) == []
    assert desk.at(50.0) == [Exit(0, "islands [1] did not say that they had saved within 50 s")]


def test_an_island_that_leaves_after_the_cut_is_not_waited_for() -> None:
    desk = finished(2)
    desk.saved(0)
    assert desk.leave(1)[-1] == Exit(0, "every island has saved the final cut or left")


def test_saved_before_the_final_cut_means_nothing() -> None:
    desk = Desk()
    desk.ready(1)
    assert desk.saved(0) == []
    assert desk.brain.status()["phase"] == "training"


def test_saved_twice_ends_nothing_twice() -> None:
    desk = finished(2)
    assert desk.saved(0) == [] and desk.saved(0) == []
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


def test_a_stop_before_training_exits_at_once() -> None:
    desk = Desk()
    desk.join(0)
    assert isinstance(messages(desk.effects)[-1], InitWanted)
    reason = "told to stop before training began"
    assert desk.take(StopRequested()) == [
        Send(control(0), Stopping(SESSION, "k1", reason)),
        WriteTape(tape_lines.Stopped(reason=reason)),
        Exit(0, reason),
    ]


def test_a_second_stop_exits_at_once() -> None:
    desk = Desk()
    desk.ready(1)
    assert desk.take(StopRequested()) == []
    assert desk.take(StopRequested())[-1] == Exit(1, "told to stop a second time")


def test_a_stop_lets_gathering_rounds_finish_and_launches_no_more() -> None:
    desk = Desk()
    desk.ready(1)
    desk.take(StopRequested())
    assert desk.brain.status()["phase"] == "stopping"
    desk.push(0, 1)
    desk.merged(1)
    desk.push(0, 2)
    assert desk.merged(2)[-1] == Exit(0, "told to stop")
    assert desk.commits() == [(1, 0), (2, 1)] and desk.pulled(0) == [(1, 1), (2, 1)]
    assert desk.sent(0, Stopping) == [Stopping(SESSION, "k1", "told to stop")]


def test_a_stop_takes_no_step_below_min_islands() -> None:
    desk = Desk(min_islands=2, shutdown_timeout_s=100.0, reconnect_grace_s=0.0, island_lease_s=1e6)
    desk.ready(2)
    desk.push(0, 1)
    desk.gone(1)
    desk.take(StopRequested())
    assert desk.at(99.0) == []
    assert desk.at(100.0)[-1] == Exit(0, "told to stop")
    assert not desk.merges()


def test_a_stop_abandons_at_once_what_nobody_can_answer() -> None:
    desk = Desk()
    desk.ready(1)
    desk.gone(0)
    effects = desk.take(StopRequested())
    assert effects[-1] == Exit(0, "told to stop")
    assert not desk.tape(tape_lines.Commit)


def test_rounds_that_gather_too_long_are_taken_back() -> None:
    desk = Desk(shutdown_timeout_s=100.0, island_lease_s=1e6, quorum=2, expected_islands=2)
    desk.ready(2)
    held = "k1.1"
    desk.push(0, 2)
    desk.take(StopRequested())
    reason = "outer step 2 was taken back: not complete within 100 s of the stop"
    assert desk.at(100.0) == [
        Send(control(1), PullClosed(SESSION, "k3", 2, 1)),
        DropUpload(held, reason),
        Send(control(0), Dropped(SESSION, "k1", held, reason, initial_names(2)[1])),
        WriteTape(tape_lines.Dropped(island=0, push=held, t=2, fragment=1, reason=reason)),
        Send(control(0), PullClosed(SESSION, "k1", 1, 0)),
        Send(control(1), PullClosed(SESSION, "k3", 1, 0)),
        Send(control(0), Stopping(SESSION, "k1", "told to stop")),
        Send(control(1), Stopping(SESSION, "k3", "told to stop")),
        WriteTape(tape_lines.Stopped(reason="told to stop")),
        Exit(0, "told to stop"),
    ]


def test_a_computed_round_is_committed_though_the_one_before_it_is_given_up() -> None:
    desk = Desk(shutdown_timeout_s=100.0, island_lease_s=1e6)
    desk.ready(1)
    desk.push(0, 2)
    desk.take(StopRequested())
    desk.at(100.0)
    assert [(line.t, line.void) for line in desk.tape(tape_lines.Commit)] == [(1, True)]
    assert desk.merged(2)[-1] == Exit(0, "told to stop")
    assert desk.commits() == [(2, 1)]


def test_a_stop_after_the_final_cut_exits_at_once() -> None:
    desk = finished(2)
    assert desk.take(StopRequested())[-1] == Exit(0, "told to stop")


@pytest.mark.parametrize("again", [1, 2])
def test_nothing_is_handled_after_the_exit(again: int) -> None:
    desk = Desk()
    desk.take(StopRequested())
    for _ in range(again):
        assert desk.take(Received(control(0), desk.hello(0))) == []
    assert desk.brain.next_wakeup is None and desk.brain.waiting_for() == "nothing: the syncer has ended"


def test_an_island_that_comes_back_to_a_stopping_syncer_can_still_answer() -> None:
    desk = Desk(reconnect_grace_s=0.0, expected_islands=2, quorum=2)
    desk.ready(2)
    desk.gone(1)
    desk.take(StopRequested())
    assert [m.t for m in messages(desk.join(1, life=2)) if isinstance(m, Pull)] == [1, 2]
    for t in (1, 2):
        desk.push(0, t)
        desk.push(1, t, life=2)
        desk.merged(t)
    assert desk.commits() == [(1, 0), (2, 1)]
