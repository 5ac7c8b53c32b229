"""Rounds: admission, quorum and grace, attempts, members that come and go, and the gate."""

from __future__ import annotations

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import (
    Dropped,
    HeartbeatReply,
    Outcome,
    Paused,
    PauseOver,
    Pull,
    PullClosed,
    PushAnswer,
    Welcome,
)
from syncer.events import (
    DropUpload,
    ForgetGeneration,
    Merge,
    MergeInput,
    OpenUpload,
    Received,
    Send,
    UploadCompleted,
    UploadFailed,
    UploadProgressed,
    WriteTape,
)
from tests.syncer.brain.rules.test_admission import refuse
from tests.syncer.desk import SESSION, Desk, control, initial_names, messages

# -- Admission --------------------------------------------------------------------------------------------------------


def test_an_empty_answer_counts_at_once_and_holds_no_anchor() -> None:
    desk = Desk(quorum=2)
    desk.ready(2)
    offer = desk.offer_of(0, 1, steps=0, tokens=0)
    held = Send(control(0), PushAnswer(SESSION, "k1", offer.push, Outcome.HELD))
    assert desk.take(Received(control(0), offer)) == [held]
    assert desk.brain.status().open[0].complete == 1
    desk.gone(0)
    welcome = messages(desk.join(0, life=2))[0]
    assert isinstance(welcome, Welcome) and welcome.held == ()


# -- Quorum and grace -------------------------------------------------------------------------------------------------


def test_round_waits_for_grace_after_quorum_and_lets_the_late_go() -> None:
    desk = Desk(grace_cap_s=1.0, late_carry=False)
    desk.ready(2)
    desk.now = 10.0
    assert messages(desk.push(0, 1)) == [PushAnswer(SESSION, "k1", "k1.1", Outcome.HELD)]
    assert desk.brain.next_wakeup == 11.0
    assert desk.at(11.0) == [
        Send(control(1), PullClosed(SESSION, "k3", 1, 0)),
        Merge(1, 1, 0, (MergeInput(0, "k1.1", 200.0),)),
    ]
    assert refuse(desk, 1, 1)[0] == "attempt 1 of outer step 1 is over"


def test_an_upload_that_makes_progress_is_waited_for_and_then_dropped() -> None:
    desk = Desk(grace_cap_s=1.0, upload_grace_s=60.0, late_carry=False)
    desk.ready(2)
    late = desk.offer(1, 1)
    desk.push(0, 1)
    desk.now = 0.5
    desk.take(UploadProgressed(late))
    assert desk.at(1.0) == [] and desk.brain.next_wakeup == 5.5
    reason = "outer step 1 closed before the push was complete"
    assert desk.at(5.5) == [
        DropUpload(late, reason),
        Send(control(1), Dropped(SESSION, "k3", late, reason, initial_names(2)[0])),
        WriteTape(tape_lines.Dropped(island=1, push=late, t=1, fragment=0, reason=reason)),
        Merge(1, 1, 0, (MergeInput(0, "k1.2", 200.0),)),
    ]
    assert desk.take(UploadCompleted(late, 16)) == []
    desk.merged(1)
    assert desk.offer(1, 3) in {e.upload for e in desk.effects if isinstance(e, OpenUpload)}


def test_grace_uses_the_step_time_of_the_kth_fastest_member() -> None:
    desk = Desk(grace_cap_s=100.0, grace_gamma=0.5, grace_tau=2.0, quorum=1, sync_every_steps=8)
    desk.ready(2)
    for now, step in ((10.0, 1), (20.0, 2), (30.0, 3)):
        desk.now = now
        desk.beat(0, step)
    desk.push(0, 1, capture_step=3)
    assert desk.brain.next_wakeup == 30.0 + 0.5 * 2.0 * 10.0


def test_a_round_that_misses_its_quorum_in_time_begins_again() -> None:
    desk = Desk(fragments=1, expected_islands=3, quorum=2, quorum_timeout_s=900.0, island_lease_s=1e6)
    desk.ready(3)
    held, arriving = "k1.1", "k3.2"
    desk.push(0, 1)
    desk.offer(1, 1)
    assert desk.brain.next_wakeup == 900.0
    reason = "outer step 1 begins again: only 1 of 2 answers within 900 s"
    assert desk.at(900.0) == [
        DropUpload(held, reason),
        Send(control(0), Dropped(SESSION, "k1", held, reason, initial_names(2)[0])),
        WriteTape(tape_lines.Dropped(island=0, push=held, t=1, fragment=0, reason=reason)),
        DropUpload(arriving, reason),
        Send(control(1), Dropped(SESSION, "k3", arriving, reason, initial_names(2)[0])),
        WriteTape(tape_lines.Dropped(island=1, push=arriving, t=1, fragment=0, reason=reason)),
        *[Send(control(i), PullClosed(SESSION, desk.generation[i], 1, 0)) for i in (2,)],
        *[Send(control(i), Pull(SESSION, desk.generation[i], 1, 0, 2)) for i in (0, 1, 2)],
    ]
    for island in (0, 1, 2):
        desk.push(island, 1, attempt=2)
    assert [merge.attempt for merge in desk.merges()] == [2]


def test_quorum_clock_waits_for_the_h_gate() -> None:
    desk = Desk(sync_every_steps=10, quorum=2, quorum_timeout_s=100.0, island_lease_s=1e6, fragments=1)
    desk.ready(2)
    assert desk.at(5000.0) == []
    desk.beat(0, 10)
    desk.beat(1, 9)
    assert desk.at(6000.0) == []
    desk.beat(1, 10)
    assert desk.brain.next_wakeup == 6100.0


def test_a_failed_upload_is_dropped_and_asked_for_again() -> None:
    desk = Desk(quorum=2)
    desk.ready(2)
    push = desk.offer(0, 1)
    assert desk.take(UploadFailed(push, "damaged 3 times")) == [
        Send(control(0), Dropped(SESSION, "k1", push, "damaged 3 times", initial_names(2)[0])),
        WriteTape(tape_lines.Dropped(island=0, push=push, t=1, fragment=0, reason="damaged 3 times")),
        Send(control(0), Pull(SESSION, "k1", 1, 0, 1)),
    ]
    assert messages(desk.push(0, 1))[0].outcome is Outcome.HELD  # type: ignore[union-attr]


# -- Members come and go ----------------------------------------------------------------------------------------------


def test_a_member_that_ends_unanswered_leaves_the_round_and_its_slot_passes_on() -> None:
    desk = Desk(expected_islands=3, quorum=3, reconnect_grace_s=5.0)
    desk.ready(3)
    desk.offer(2, 1)
    desk.gone(2)
    effects = desk.at(5.0)
    assert effects[0] == ForgetGeneration("k5", "its control link closed")
    reason = "its generation ended before it was complete"
    assert effects[2] == WriteTape(tape_lines.Dropped(island=2, push="k5.1", t=1, fragment=0, reason=reason))
    again = desk.join(2, life=2)
    assert [m.t for m in messages(again) if isinstance(m, Pull)] == [1, 2]
    desk.push(2, 1, life=2)
    desk.push(0, 1)
    desk.push(1, 1)
    assert [m.island for m in desk.merges()[0].contributions] == [0, 1, 2]


def test_a_complete_answer_survives_its_generation() -> None:
    desk = Desk(quorum=2, reconnect_grace_s=0.0)
    desk.ready(2)
    desk.push(1, 1)
    desk.gone(1)
    desk.push(0, 1)
    assert [m.island for m in desk.merges()[0].contributions] == [0, 1]


def test_a_death_does_not_complete_a_round_below_min_islands() -> None:
    desk = Desk(min_islands=2, reconnect_grace_s=0.0)
    desk.ready(2)
    desk.push(0, 1)
    effects = desk.gone(1)
    assert Send(control(0), Paused(SESSION, "k1", "1 of at least 2 islands are here", 1)) in effects
    assert not desk.merges() and desk.brain.status().phase == "paused"
    assert desk.brain.waiting_for() == "1 more island(s) to join: the run is paused below 2"
    (reply,) = messages(desk.beat(0, 1))
    assert isinstance(reply, HeartbeatReply)
    assert (reply.members, reply.paused) == (1, "1 of at least 2 islands are here")


def test_a_new_island_makes_a_round_that_lost_its_own_begin_again() -> None:
    desk = Desk(min_islands=2, reconnect_grace_s=0.0)
    desk.ready(2)
    desk.push(0, 1)
    desk.gone(1)
    effects = desk.join(7)
    assert Send(control(0), PauseOver(SESSION, "k1")) in effects
    assert [m.attempt for m in messages(effects) if isinstance(m, Pull)] == [2, 2, 2, 2]
    desk.push(0, 1, attempt=2)
    desk.push(7, 1, attempt=2)
    assert [m.island for m in desk.merges()[0].contributions] == [0, 7]


def test_nothing_is_launched_below_min_islands() -> None:
    desk = Desk(min_islands=2, reconnect_grace_s=0.0, quorum=2)
    desk.ready(2)
    for island in (0, 1):
        desk.push(island, 1)
    desk.gone(1)
    desk.merged(1)
    assert desk.commits() == [(1, 0)]
    assert desk.pulled(0) == [(1, 1), (2, 1)]


def test_islands_with_nothing_to_tell_do_not_turn_away_those_who_have() -> None:
    desk = Desk(fragments=1, quorum=1)
    desk.ready(2)
    desk.done(0)
    desk.empty(0, 1)
    desk.at(30.0)
    assert not desk.tape(tape_lines.Commit)
    assert desk.brain.waiting_for() == "island 1 to answer outer step 1 (fragment 0)"
    desk.push(1, 1)
    assert [part.island for part in desk.merges()[0].contributions] == [1]


def test_rounds_open_at_once_are_on_distinct_fragments() -> None:
    desk = Desk(fragments=4, pipeline=4, sync_every_steps=1)
    desk.ready(1)
    assert [m.fragment for m in desk.sent(0, Pull)] == [0, 1, 2, 3]
    desk.push(0, 2)
    desk.merged(2)
    assert len(desk.sent(0, Pull)) == 4
    desk.push(0, 1)
    desk.merged(1)
    assert [(m.t, m.fragment) for m in desk.sent(0, Pull)][4:] == [(5, 0), (6, 1)]


def test_launches_keep_the_pace_of_h_local_steps() -> None:
    desk = Desk(fragments=2, pipeline=1, sync_every_steps=8)
    desk.ready(1)
    for now, step in ((0.0, 1), (2.0, 2), (4.0, 3)):
        desk.now = now
        desk.beat(0, step)
    desk.push(0, 1, capture_step=3)
    desk.merged(1)
    desk.push(0, 2, capture_step=3)
    desk.merged(2)
    assert desk.pulled(0) == [(1, 1), (2, 1)]
    assert desk.brain.next_wakeup == 4.0 + 8 * 2.0 / 2
    assert messages(desk.at(12.0)) == [Pull(SESSION, "k1", 3, 0, 1)]


def test_launches_keep_the_floor() -> None:
    desk = Desk(launch_floor_s=7.0)
    desk.ready(1)
    assert desk.pulled(0) == [(1, 1)]
    desk.at(6.9)
    assert desk.pulled(0) == [(1, 1)]
    desk.at(7.0)
    assert desk.pulled(0) == [(1, 1), (2, 1)]
