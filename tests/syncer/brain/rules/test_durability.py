"""When checkpoints are written, what waits for them, and what a failure stops."""

from __future__ import annotations

from typing import Any

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.manifest import SavedState
from swift_diloco.core.formats.messages import FinalCut, Pull, ValueName
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminRequest
from swift_diloco.core.formats.status import CheckpointStatus
from syncer.brain.rules.durability import RETRY_S
from syncer.events import (
    AdoptInit,
    AnnounceAll,
    CheckpointFailed,
    CheckpointWritten,
    Commit,
    Effect,
    Exit,
    FragmentWritten,
    InitAdopted,
    Log,
    Received,
    Send,
    StopRequested,
    UploadCompleted,
    WriteCheckpoint,
    WriteFirst,
    WriteTape,
)
from tests.syncer.desk import SESSION, Desk, control, initial_names, messages


def desk_of(**settings: Any) -> Desk:
    """Two fragments, written to a folder."""
    given: dict[str, Any] = {"checkpoint_path": "/saved", "checkpoint_every": 2}
    return Desk(**(given | settings))


def wanted(effects: list[Effect]) -> list[tuple[int, int]]:
    """(number, outer step) of the checkpoints that are to be written."""
    return [(e.number, e.state.step) for e in effects if isinstance(e, WriteCheckpoint)]


def written(desk: Desk, number: int) -> list[Effect]:
    return desk.take(CheckpointWritten(number))


def failed(desk: Desk, number: int) -> list[Effect]:
    return desk.take(CheckpointFailed(number, "no room"))


def step(desk: Desk, t: int) -> list[Effect]:
    """Outer step `t` from island 0's push to its commit."""
    desk.push(0, t)
    return desk.merged(t)


def newest(desk: Desk) -> SavedState:
    return [e.state for e in desk.effects if isinstance(e, WriteCheckpoint)][-1]


def test_nothing_is_written_without_a_folder() -> None:
    desk = Desk(checkpoint_every=1)
    desk.ready(1)
    step(desk, 1)
    assert wanted(desk.effects) == []


def test_a_checkpoint_is_due_every_n_outer_steps() -> None:
    desk = desk_of()
    desk.ready(1)
    for t in (1, 2, 3):
        step(desk, t)
        if t == 2:
            written(desk, 1)
    assert wanted(desk.effects) == [(1, 2)]
    step(desk, 4)
    assert wanted(desk.effects) == [(1, 2), (2, 4)]


def test_a_checkpoint_holds_names_history_and_merged_anchors() -> None:
    desk = desk_of()
    desk.ready(1)
    step(desk, 1)
    step(desk, 2)
    state = newest(desk)
    first, second = ValueName(0, 1, "digest-1"), ValueName(1, 2, "digest-2")
    assert (state.run, state.step, state.values) == ("k3", 2, (first, second))
    assert state.history == ((initial_names(2)[0], first), (initial_names(2)[1], second))
    assert state.merged == ((0, initial_names(2)),)
    assert not state.final and state.carried == ()


def test_commits_wait_for_a_plain_checkpoint_and_go_on_when_it_is_written() -> None:
    desk = desk_of()
    desk.ready(1)
    step(desk, 1)
    step(desk, 2)
    assert not [e for e in step(desk, 3) if isinstance(e, Commit)]
    assert desk.brain.waiting_for() == "the checkpoint of outer step 2, to commit outer step 3 (fragment 0)"
    assert [e.t for e in written(desk, 1) if isinstance(e, Commit)] == [3]


def test_in_the_background_only_a_fragment_that_is_not_written_yet_makes_its_commit_wait() -> None:
    desk = desk_of(background_checkpoint=True)
    desk.ready(1)
    step(desk, 1)
    step(desk, 2)
    assert wanted(desk.effects) == [(1, 2)]
    assert step(desk, 3) == [WriteFirst(0)]
    effects = desk.take(FragmentWritten(1, 0))
    assert [e.t for e in effects if isinstance(e, Commit)] == [3]
    assert not [e for e in step(desk, 4) if isinstance(e, Commit)]
    effects = desk.take(FragmentWritten(1, 1))
    assert [e.t for e in effects if isinstance(e, Commit)] == [4]
    assert wanted(desk.effects) == [(1, 2)], "one checkpoint at a time"
    assert wanted(written(desk, 1)) == [(2, 4)]


def test_a_fragment_that_did_not_change_is_not_waited_for() -> None:
    desk = desk_of(background_checkpoint=True, checkpoint_every=1)
    desk.ready(1)
    step(desk, 1)
    written(desk, 1)
    step(desk, 2)  # Checkpoint 2 has a new fragment 1, and fragment 0 as it was.
    assert [e.t for e in step(desk, 3) if isinstance(e, Commit)] == [3]


def test_the_first_round_waits_for_the_checkpoint_on_start() -> None:
    desk = desk_of(checkpoint_on_start=True, checkpoint_every=8)
    effects = desk.ready(1)
    assert wanted(effects) == [(1, 0)] and not desk.sent(0, Pull)
    assert desk.brain.waiting_for() == "the checkpoint of outer step 0, which comes before the first round"
    assert messages(written(desk, 1)) == [Pull(SESSION, "k1", 1, 0, 1), Pull(SESSION, "k1", 2, 1, 1)]
    step(desk, 1)
    assert wanted(desk.effects) == [(1, 0)]


def test_a_failure_on_start_is_told_loudly_and_the_run_begins() -> None:
    desk = desk_of(checkpoint_on_start=True)
    desk.ready(1)
    failed(desk, 1)
    assert len(desk.sent(0, Pull)) == 2
    (told,) = (e.text for e in desk.effects if isinstance(e, Log) and e.level == "error")
    assert told.startswith("THE CHECKPOINT of outer step 0 COULD NOT BE WRITTEN to /saved: no room; ")


def test_after_a_failure_the_run_goes_on_and_the_write_is_tried_again() -> None:
    desk = desk_of()
    desk.ready(1)
    step(desk, 1)
    step(desk, 2)
    effects = failed(desk, 1)
    assert WriteTape(tape_lines.CheckpointFailed(t=2, reason="no room")) in effects and not wanted(effects)
    assert desk.brain.status().checkpoint == CheckpointStatus(None, "", "no room")
    assert [e.t for e in step(desk, 3) if isinstance(e, Commit)] == [3]
    assert wanted(desk.at(RETRY_S - 1.0)) == []
    assert wanted(desk.at(RETRY_S)) == [(2, 3)]
    written(desk, 2)
    assert desk.brain.status().checkpoint == CheckpointStatus(3, "", "")


def test_what_an_operator_set_is_on_the_disk_soon() -> None:
    desk = desk_of(checkpoint_every=100)
    desk.ready(2)
    request = AdminRequest("n", "", AdminCommand.SET, changes=(("quorum", "2"),))
    effects = desk.take(Received("admin-1-1", request))
    assert wanted(effects) == [(1, 0)] and newest(desk).overrides == {"quorum": 2}


def test_an_operator_may_ask_for_a_checkpoint() -> None:
    desk = desk_of(checkpoint_every=100)
    desk.ready(1)
    effects = desk.take(Received("admin-1-1", AdminRequest("n", "", AdminCommand.CHECKPOINT)))
    assert wanted(effects) == [(1, 0)]
    assert not wanted(written(desk, 1))


# -- Durable before publish -------------------------------------------------------------------------------------------


def durable_desk(**settings: Any) -> Desk:
    """A run whose initial values wait for the disk."""
    desk = desk_of(durable_publish=True, **settings)
    desk.join(0)
    for fragment in range(2):
        desk.take(UploadCompleted(f"k1.init-1-{fragment}", 16))
    assert desk.effects[-1] == AdoptInit(("k1.init-1-0", "k1.init-1-1"), "k3", announce=False)
    effects = desk.take(InitAdopted(initial_names(2)))
    assert wanted(effects) == [(1, 0)] and len(effects) == 1
    return desk


def test_nobody_hears_of_initial_values_that_are_not_on_the_disk() -> None:
    desk = durable_desk()
    desk.join(1)
    assert desk.brain.status().versions == () and not desk.sent(1, Pull)
    effects = written(desk, 1)
    assert effects[1] == AnnounceAll() and desk.tape(tape_lines.Init)
    assert desk.brain.status().versions == (0, 0) and desk.sent(1, Pull)


def test_initial_values_that_cannot_be_written_are_tried_again() -> None:
    desk = durable_desk()
    assert not wanted(failed(desk, 1)) and not desk.tape(tape_lines.Init)
    assert wanted(desk.at(RETRY_S)) == [(2, 0)]
    assert AnnounceAll() in written(desk, 2)


def test_a_value_is_on_the_disk_before_it_is_published() -> None:
    desk = durable_desk()
    written(desk, 1)
    effects = step(desk, 1)
    (wrote,) = (e for e in effects if isinstance(e, WriteCheckpoint))
    assert wrote.state.step == 1 and wrote.state.values[0] == ValueName(0, 1, "digest-1")
    assert wrote.state.merged == ((0, (initial_names(2)[0],)),)
    lines = [type(e.line) for e in effects if isinstance(e, WriteTape)]
    assert lines == [tape_lines.Commit], "the tape never lacks what is saved"
    assert not desk.commits() and desk.brain.status().versions == (0, 0)
    assert [e.t for e in written(desk, 2) if isinstance(e, Commit)] == [1]
    assert len(desk.tape(tape_lines.Commit)) == 1


def test_outer_steps_wait_for_a_disk_that_is_full_and_the_islands_train_on() -> None:
    desk = durable_desk()
    written(desk, 1)
    step(desk, 1)
    failed(desk, 2)
    assert not desk.commits() and not step(desk, 2)
    assert wanted(desk.at(RETRY_S)) == [(3, 1)]
    assert wanted(written(desk, 3)) == [(4, 2)]
    assert [line.t for line in desk.tape(tape_lines.Commit)] == [1, 2]
    assert desk.commits() == [(1, 0)]


# -- The end ----------------------------------------------------------------------------------------------------------


def done_desk(**settings: Any) -> Desk:
    """A run of one island whose last rounds are over."""
    desk = desk_of(checkpoint_every=100, **settings)
    desk.ready(1)
    desk.done(0)
    for t in (1, 2, 3, 4):
        desk.empty(0, t)
    return desk


def test_the_final_cut_is_on_the_disk_before_it_is_out() -> None:
    desk = done_desk()
    state = newest(desk)
    assert (state.final, state.unsaved, state.step) == (True, (0,), 4)
    assert not desk.sent(0, FinalCut)
    effects = written(desk, 1)
    assert Send(control(0), FinalCut(SESSION, "k1", initial_names(2))) in effects
    assert desk.saved(0)[-1] == Exit(0, "every island has saved the final cut", finished=True)


def test_the_final_cut_goes_out_although_it_could_not_be_written_and_that_is_tried_again() -> None:
    desk = done_desk()
    assert Send(control(0), FinalCut(SESSION, "k1", initial_names(2))) in failed(desk, 1)
    effects = desk.at(RETRY_S)
    assert wanted(effects) == [(2, 4)] and newest(desk).final


def test_a_checkpoint_that_says_final_is_replaced_when_training_goes_on() -> None:
    desk = done_desk()
    desk.join(1)
    effects = written(desk, 1)
    assert not desk.sent(0, FinalCut)
    assert wanted(effects) == [(2, 4)] and not newest(desk).final


@pytest.mark.parametrize("background", [False, True])
def test_a_stop_writes_what_is_not_on_the_disk_and_exits_with_0(background: bool) -> None:
    desk = desk_of(background_checkpoint=background)
    desk.ready(1)
    step(desk, 1)
    desk.gone(0)
    desk.at(10.0)
    effects = desk.take(StopRequested())
    assert wanted(effects) == [(1, 1)] and not [e for e in effects if isinstance(e, Exit)]
    assert written(desk, 1)[-1] == Exit(0, "told to stop")


def test_a_stop_waits_for_a_background_write_and_then_writes_the_rest() -> None:
    desk = desk_of(background_checkpoint=True)
    desk.ready(1)
    for t in (1, 2):
        step(desk, t)
    desk.take(FragmentWritten(1, 0))
    step(desk, 3)
    desk.gone(0)
    desk.at(10.0)
    assert not [e for e in desk.take(StopRequested()) if isinstance(e, Exit)]
    desk.take(FragmentWritten(1, 1))
    assert wanted(written(desk, 1)) == [(2, 3)]
    assert written(desk, 2)[-1] == Exit(0, "told to stop")


def test_a_stop_with_everything_on_the_disk_exits_at_once() -> None:
    desk = desk_of(checkpoint_every=1)
    desk.ready(1)
    step(desk, 1)
    written(desk, 1)
    desk.gone(0)
    desk.at(10.0)
    assert desk.take(StopRequested())[-1] == Exit(0, "told to stop")


def test_a_stop_that_cannot_write_says_so_with_its_exit_code() -> None:
    desk = desk_of()
    desk.ready(1)
    step(desk, 1)
    desk.gone(0)
    desk.at(10.0)
    desk.take(StopRequested())
    assert failed(desk, 1)[-1] == Exit(1, "told to stop; the last checkpoint could not be written: no room")


def test_a_second_stop_does_not_wait_for_the_checkpoint() -> None:
    desk = desk_of()
    desk.ready(1)
    step(desk, 1)
    desk.gone(0)
    desk.at(10.0)
    desk.take(StopRequested())
    assert desk.take(StopRequested())[-1] == Exit(1, "told to stop a second time")


def test_a_stop_while_a_merge_is_computed_commits_it_first() -> None:
    desk = desk_of()
    desk.ready(1)
    desk.push(0, 1)
    desk.gone(0)
    desk.at(10.0)
    assert not wanted(desk.take(StopRequested()))
    effects = desk.merged(1)
    assert [e.t for e in effects if isinstance(e, Commit)] == [1] and wanted(effects) == [(1, 1)]
    assert written(desk, 1)[-1] == Exit(0, "told to stop")


def test_a_stop_before_training_exits_at_once() -> None:
    desk = desk_of()
    desk.join(0)
    assert desk.take(StopRequested())[-1] == Exit(0, "told to stop before training began")


def test_a_stop_does_not_wait_for_ever_for_a_disk_that_is_full() -> None:
    desk = durable_desk(shutdown_timeout_s=100.0)
    written(desk, 1)
    step(desk, 1)
    failed(desk, 2)
    desk.gone(0)
    desk.take(StopRequested())
    for now in (RETRY_S, 2 * RETRY_S, 3 * RETRY_S):
        number = wanted(desk.at(now))[0][0]
        failed(desk, number)
    ending = desk.at(100.0)[-1]
    assert ending == Exit(1, "told to stop; computed outer steps could not be written: no room")
    assert not desk.commits()
