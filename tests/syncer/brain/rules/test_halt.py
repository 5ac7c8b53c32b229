"""The graceful stop of the syncer."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import (
    Dropped,
    InitWanted,
    Pull,
    PullClosed,
    Stopping,
)
from swift_diloco.core.formats.operator_messages import AdminCommand
from syncer.events import DropUpload, Effect, Exit, Received, Send, StopRequested, WriteTape
from tests.syncer.desk import SESSION, Desk, control, finished, initial_names, messages, order


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


@pytest.mark.parametrize("first", [StopRequested(signal=False), "order"])
def test_only_a_second_signal_ends_without_a_checkpoint(first: StopRequested | str) -> None:
    """An order to stop is often followed by the service manager's SIGTERM, and whoever waits may order again."""
    desk = Desk(checkpoint_path="/saved")
    desk.ready(1)

    def stop(by: StopRequested | str) -> list[Effect]:
        return desk.take(by) if isinstance(by, StopRequested) else order(desk, AdminCommand.STOP)

    for by in (first, StopRequested(signal=False), "order", StopRequested()):
        assert not any(isinstance(effect, Exit) for effect in stop(by)), by
    assert stop(StopRequested())[-1] == Exit(1, "told to stop a second time")


def test_a_stop_lets_gathering_rounds_finish_and_launches_no_more() -> None:
    desk = Desk()
    desk.ready(1)
    desk.take(StopRequested())
    assert desk.brain.status().phase == "stopping"
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
