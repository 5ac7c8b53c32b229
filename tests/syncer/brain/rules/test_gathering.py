"""Rounds: admission, quorum and grace, attempts, members that come and go, and the gate."""

from __future__ import annotations

from typing import Any

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import (
    Dropped,
    HeartbeatReply,
    Outcome,
    Paused,
    Pull,
    PullClosed,
    PushAnswer,
    Resumed,
    ValueName,
    Welcome,
)
from syncer.events import (
    DropUpload,
    ForgetGeneration,
    Merge,
    Merging,
    OpenUpload,
    Received,
    Send,
    UploadCompleted,
    UploadFailed,
    UploadProgressed,
    WriteTape,
)
from tests.syncer.desk import SESSION, Desk, control, initial_names, messages, pushed

# -- Admission --------------------------------------------------------------------------------------------------------


def refuse(desk: Desk, island: int, t: int, **changes: Any) -> tuple[str, bool]:
    """The reason of a refused offer and whether it says that the anchor is held; asserts that nothing else happens."""
    offer = desk.offer_of(island, t, **changes)
    effects = desk.take(Received(control(island), offer))
    assert len(effects) == 2, effects
    sent, line = effects
    assert isinstance(sent, Send) and isinstance(sent.message, PushAnswer), sent
    answer = sent.message
    assert answer.outcome is Outcome.REFUSED and answer.push == offer.push
    fragment = offer.anchor.fragment
    refused = tape_lines.Refused(island=island, push=offer.push, fragment=fragment, reason=answer.reason)
    assert line == WriteTape(refused)
    return answer.reason, answer.anchor_held


@pytest.mark.parametrize(
    ("t", "changes", "reason"),
    [
        (9, {}, "outer step 9 is not open for fragment 0"),
        (1, {"anchor": ValueName(1, 0, "digest-1-0")}, "outer step 1 is not open for fragment 1"),
        (1, {"anchor": ValueName(-1, 0, "")}, "outer step 1 is not open for fragment -1"),
        (1, {"attempt": 2}, "attempt 2 of outer step 1 is over"),
        (1, {"anchor": ValueName(0, 0, "x")}, "the anchor (version 0) is forked; install the present one first"),
        (1, {"anchor": ValueName(0, 3, "x")}, "the anchor (version 3) is newer; install the present one first"),
        (1, {"push": "k3.1"}, "the push id must begin with the generation and a dot, and have at most 256 characters"),
        (1, {"steps": -1}, "-1 steps and 20 tokens; expected 0 to 9007199254740992"),
        (1, {"tokens": 2**60}, f"2 steps and {2**60} tokens; expected 0 to 9007199254740992"),
    ],
)
def test_an_offer_is_refused_with_its_reason(t: int, changes: dict[str, Any], reason: str) -> None:
    desk = Desk()
    desk.ready(2)
    assert refuse(desk, 0, t, **changes) == (reason, False)


def test_an_island_that_joined_after_the_launch_is_no_member_of_the_round() -> None:
    desk = Desk()
    desk.ready(1)
    desk.join(1)
    assert refuse(desk, 1, 1)[0] == "island 1 was no member when outer step 1 was launched"


def test_a_second_answer_of_an_island_is_refused() -> None:
    desk = Desk()
    desk.ready(2)
    desk.offer(0, 1)
    assert refuse(desk, 0, 1) == ("outer step 1 has an answer of island 0 already", False)


def test_a_push_id_in_use_is_refused_also_when_its_upload_is_complete() -> None:
    desk = Desk(quorum=2)
    desk.ready(2)
    desk.push(0, 1, push="k1.same")
    assert refuse(desk, 0, 2, push="k1.same")[0] == "the push id is in use"


@pytest.mark.parametrize(("allowed", "taken"), [(0, False), (1, True)])
def test_lag_is_counted_in_versions_of_the_fragment(allowed: int, taken: bool) -> None:
    desk = Desk(max_base_lag=allowed)
    desk.ready(2)
    desk.push(0, 1)
    desk.merged(1)
    old = initial_names(2)[0]
    if taken:
        offer = desk.offer_of(1, 3, anchor=old)
        assert desk.take(Received(control(1), offer)) == [pushed(1, offer), OpenUpload(offer.push, "k3", 0, "f32")]
    else:
        assert refuse(desk, 1, 3, anchor=old)[0] == "the anchor is 1 versions behind; at most 0 are allowed"


def test_a_merged_anchor_is_held_for_ever() -> None:
    desk = Desk(max_base_lag=5)
    desk.ready(2)
    desk.push(0, 1)
    desk.merged(1)
    held = ("a delta from this anchor (version 0) is held already", True)
    assert refuse(desk, 0, 3, anchor=initial_names(2)[0]) == held
    desk.gone(0)
    welcome = messages(desk.join(0, life=2))[0]
    assert isinstance(welcome, Welcome) and welcome.held == (initial_names(2)[0],)


def test_an_empty_answer_counts_at_once_and_holds_no_anchor() -> None:
    desk = Desk(quorum=2)
    desk.ready(2)
    offer = desk.offer_of(0, 1, steps=0, tokens=0)
    held = Send(control(0), PushAnswer(SESSION, "k1", offer.push, Outcome.HELD))
    assert desk.take(Received(control(0), offer)) == [held]
    assert desk.brain.status()["open"][0]["complete"] == 1  # type: ignore[index]
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
        Merge(1, 1, 0, (Merging(0, "k1.1", 200.0),)),
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
        Merge(1, 1, 0, (Merging(0, "k1.2", 200.0),)),
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
    assert not desk.merges() and desk.brain.status()["phase"] == "paused"
    assert desk.brain.waiting_for() == "1 more island(s) to join: the run is paused below 2"
    (reply,) = messages(desk.beat(0, 1))
    assert isinstance(reply, HeartbeatReply)
    assert (reply.members, reply.paused) == (1, "1 of at least 2 islands are here")


def test_a_paused_run_resumes_by_itself_when_the_island_returns() -> None:
    desk = Desk(min_islands=2, reconnect_grace_s=0.0)
    desk.ready(2)
    desk.push(0, 1)
    desk.gone(1)
    effects = desk.join(1, life=2)
    assert Send(control(0), Resumed(SESSION, "k1")) in effects
    desk.push(1, 1, life=2)
    assert [m.island for m in desk.merges()[0].contributions] == [0, 1]


def test_a_new_island_makes_a_round_that_lost_its_own_begin_again() -> None:
    desk = Desk(min_islands=2, reconnect_grace_s=0.0)
    desk.ready(2)
    desk.push(0, 1)
    desk.gone(1)
    effects = desk.join(7)
    assert Send(control(0), Resumed(SESSION, "k1")) in effects
    assert [m.attempt for m in messages(effects) if isinstance(m, Pull)] == [2, 2, 2, 2]
    desk.push(0, 1, attempt=2)
    desk.push(7, 1, attempt=2)
    assert [m.island for m in desk.merges()[0].contributions] == [0, 7]


def test_an_island_that_joins_a_paused_run_is_told() -> None:
    desk = Desk(min_islands=3, expected_islands=3, reconnect_grace_s=0.0)
    desk.ready(3)
    desk.gone(1)
    desk.gone(2)
    assert messages(desk.join(1, life=2))[-3:][0] == Paused(SESSION, "k8", "2 of at least 3 islands are here", 1)


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
