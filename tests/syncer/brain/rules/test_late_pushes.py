"""Pushes that missed their round: carried into the next one, once, if they are not too old."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import Dropped, Outcome, PushAnswer, ValueName, Welcome
from syncer.events import (
    Commit,
    DropUpload,
    ForgetGeneration,
    Merge,
    MergeInput,
    OpenUpload,
    Received,
    Send,
    UploadCompleted,
    UploadFailed,
    WriteTape,
)
from tests.syncer.desk import SESSION, Desk, control, initial_names, messages, pushed

ANCHOR = initial_names(2)[0]


def with_a_late_upload(**settings: object) -> tuple[Desk, str]:
    """Island 1's push is on its way when outer step 1 closes with island 0's alone, and is committed."""
    desk = Desk(**({"quorum": 1} | settings))  # type: ignore[arg-type]
    desk.ready(2)
    late = desk.offer(1, 1)
    desk.push(0, 1)
    desk.at(desk.now + 5.0)
    desk.merged(1)
    assert desk.commits() == [(1, 0)]
    return desk, late


def test_a_late_push_is_carried_when_it_is_complete() -> None:
    desk, late = with_a_late_upload()
    assert not desk.tape(tape_lines.Dropped)
    assert desk.take(UploadCompleted(late, 16)) == [
        Send(control(1), PushAnswer(SESSION, "k3", late, Outcome.CARRIED)),
        WriteTape(tape_lines.Carried(island=1, push=late, t=1, fragment=0)),
    ]
    name = ValueName(0, 1, "digest-1")
    own = desk.offer(1, 3, anchor=name)
    other = desk.offer(0, 3, anchor=name)
    desk.take(UploadCompleted(own, 16))
    desk.take(UploadCompleted(other, 16))
    contributions = tuple(MergeInput(island, push, 200.0) for island, push in ((0, other), (1, late), (1, own)))
    assert desk.merges()[1:] == [Merge(3, 1, 0, contributions)]
    desk.push(0, 2)
    desk.at(desk.now + 5.0)
    desk.merged(2)
    commits = [e for e in desk.merged(3) if isinstance(e, Commit)]
    assert [commit.uploads for commit in commits] == [(other, late, own)]
    line = desk.tape(tape_lines.Commit)[-1]
    told = [(part.push, part.lag, part.carried) for part in line.contributions]
    assert told == [(other, 0, False), (late, 1, True), (own, 0, False)]


@pytest.mark.parametrize(("discount", "weight"), [(1.0, 200.0), (0.5, 100.0)])
def test_the_weight_of_a_late_push_shrinks_with_its_lag(discount: float, weight: float) -> None:
    desk, late = with_a_late_upload(late_discount=discount)
    desk.take(UploadCompleted(late, 16))
    desk.push(0, 3)
    desk.at(desk.now + 5.0)
    assert desk.merges()[-1].contributions[1] == MergeInput(1, late, weight)


def test_a_late_push_without_weight_is_dropped() -> None:
    desk, late = with_a_late_upload(late_discount=0.0)
    desk.take(UploadCompleted(late, 16))
    desk.push(0, 3)
    desk.at(desk.now + 5.0)
    reason = "with 1 versions of lag its weight is 0"
    assert DropUpload(late, reason) in desk.effects
    assert Send(control(1), Dropped(SESSION, "k3", late, reason, ANCHOR)) in desk.effects
    assert [part.upload for part in desk.merges()[-1].contributions] != [late]


def test_a_push_that_misses_two_rounds_is_dropped() -> None:
    desk, late = with_a_late_upload()
    desk.push(0, 2)
    desk.at(desk.now + 5.0)
    desk.merged(2)
    desk.push(0, 3)
    desk.at(desk.now + 5.0)
    desk.merged(3)
    reason = "it missed outer step 1, and its anchor is 2 versions behind by now"
    assert desk.take(UploadCompleted(late, 16)) == [
        DropUpload(late, reason),
        Send(control(1), Dropped(SESSION, "k3", late, reason, ANCHOR)),
        WriteTape(tape_lines.Dropped(island=1, push=late, t=1, fragment=0, reason=reason)),
    ]


def test_an_offer_for_a_round_that_is_over_is_carried() -> None:
    desk = Desk(quorum=1)
    desk.ready(2)
    desk.push(0, 1)
    desk.at(1.0)
    while_merging = desk.offer_of(1, 1)
    assert desk.take(Received(control(1), while_merging)) == [
        pushed(1, while_merging),
        OpenUpload(while_merging.push, "k3", 0, Encoding.F32),
    ]
    again = desk.offer_of(1, 1)
    reason = "outer step 1 is over, and a late push of fragment 0 is held already"
    answer = PushAnswer(SESSION, "k3", again.push, Outcome.REFUSED, reason)
    assert messages(desk.take(Received(control(1), again))) == [answer]
    desk.merged(1)
    assert messages(desk.take(UploadCompleted(while_merging.push, 16)))[0].outcome is Outcome.CARRIED  # type: ignore[union-attr]


def test_the_anchor_of_a_late_push_is_held_and_told_in_welcome() -> None:
    desk, late = with_a_late_upload()
    desk.take(UploadCompleted(late, 16))
    desk.gone(1)
    welcome = messages(desk.join(1, life=2))[0]
    assert isinstance(welcome, Welcome) and welcome.held == (ANCHOR,)
    desk.push(0, 3)
    desk.at(desk.now + 5.0)
    assert [part.upload for part in desk.merges()[-1].contributions][-1] == late


def test_a_late_push_that_is_not_complete_ends_with_its_generation() -> None:
    desk, late = with_a_late_upload()
    effects = desk.leave(1)
    reason = "its generation ended before it was complete"
    assert effects[0] == ForgetGeneration("k3", "it left: told to")
    assert WriteTape(tape_lines.Dropped(island=1, push=late, t=1, fragment=0, reason=reason)) in effects
    assert messages(desk.join(1, life=2))[0].held == ()  # type: ignore[union-attr]


def test_a_late_push_that_arrives_damaged_is_dropped() -> None:
    desk, late = with_a_late_upload()
    assert desk.take(UploadFailed(late, "damaged")) == [
        Send(control(1), Dropped(SESSION, "k3", late, "damaged", ANCHOR)),
        WriteTape(tape_lines.Dropped(island=1, push=late, t=1, fragment=0, reason="damaged")),
    ]


def test_the_oldest_late_push_makes_room_for_a_new_one() -> None:
    desk = Desk(quorum=1, carried_bytes_max=20)
    desk.ready(3)
    late = [desk.offer(1, 1), desk.offer(2, 2)]
    desk.push(0, 1)
    desk.at(5.0)
    desk.merged(1)
    desk.take(UploadCompleted(late[0], 16))
    assert not desk.tape(tape_lines.Dropped)
    desk.push(0, 2)
    (dropped,) = desk.tape(tape_lines.Dropped)
    assert (dropped.push, dropped.reason) == (
        late[0],
        "late pushes take more than carried_bytes_max = 20 bytes, and it is the oldest",
    )
    assert messages(desk.take(UploadCompleted(late[1], 16)))[0].outcome is Outcome.CARRIED  # type: ignore[union-attr]


def test_what_still_arrives_needs_room_too() -> None:
    desk = Desk(quorum=1, carried_bytes_max=20)
    desk.ready(3)
    late = [desk.offer(island, 1) for island in (1, 2)]
    desk.push(0, 1)
    desk.at(5.0)
    (dropped,) = desk.tape(tape_lines.Dropped)
    assert dropped.push == late[1]
    offer = desk.offer_of(2, 1)
    reason = "late pushes take carried_bytes_max = 20 bytes already"
    assert messages(desk.take(Received(control(2), offer))) == [
        PushAnswer(SESSION, "k5", offer.push, Outcome.REFUSED, reason)
    ]


def test_a_late_offer_that_is_refused_pushes_nothing_aside() -> None:
    """Island 1 has a carried push; island 2's offer would need its room, but its anchor is held."""
    desk = Desk(quorum=1, carried_bytes_max=20)
    desk.ready(3)
    late = desk.offer(1, 1)
    desk.push(2, 1)
    desk.at(5.0)
    desk.merged(1)
    desk.take(UploadCompleted(late, 16))
    again = desk.offer_of(2, 1, anchor=ANCHOR)
    held = "a delta from this anchor (version 0) is held already"
    assert desk.take(Received(control(2), again)) == [
        Send(control(2), PushAnswer(SESSION, "k5", again.push, Outcome.REFUSED, held, True)),
        WriteTape(tape_lines.Refused(island=2, push=again.push, fragment=0, reason=held)),
    ]


@pytest.mark.parametrize("in_time", [False, True])
def test_nothing_is_dropped_where_there_would_be_no_room_after(in_time: bool) -> None:
    """Two pushes still arrive (16 bytes each), a small one is carried (8): without it 16 more would not fit either."""
    desk = Desk(quorum=1, fragments=2, carried_bytes_max=40)
    desk.ready(5)
    late = [desk.offer(island, 1) for island in (1, 2, 3)]
    desk.push(0, 1)
    desk.at(5.0)
    desk.take(UploadCompleted(late[0], 8))
    desk.merged(1)
    late.append(desk.offer(3, 1, anchor=ANCHOR))
    if in_time:
        dropped = desk.offer(4, 2)
        desk.push(0, 2)
        desk.at(10.0)
        reason = "outer step 2 closed before the push was complete"
    else:
        dropped = desk.offer(4, 1, anchor=ANCHOR)
        reason = "late pushes take carried_bytes_max = 40 bytes already"
    lines = [line for line in desk.tape(tape_lines.Dropped) + desk.tape(tape_lines.Refused) if line.push != late[2]]
    assert [(line.push, line.reason) for line in lines] == [(dropped, reason)]
    assert [key[0] for key in desk.brain._state.carried] == [1]


def test_what_a_round_merges_is_not_pushed_aside_by_what_comes_too_late_for_it() -> None:
    """Room for one push: island 1's is carried and merged with round 3, for which island 2's is not complete."""
    desk = Desk(quorum=1, carried_bytes_max=20)
    desk.ready(3)
    late = desk.offer(1, 1)
    desk.push(0, 1)
    desk.at(5.0)
    desk.merged(1)
    desk.take(UploadCompleted(late, 16))
    desk.push(0, 2)
    desk.at(desk.now + 5.0)
    desk.merged(2)
    incomplete = desk.offer(2, 3)
    own = desk.offer(0, 3)
    desk.take(UploadCompleted(own, 16))
    desk.at(desk.now + 5.0)
    assert [part.upload for part in desk.merges()[-1].contributions] == [own, late]
    reason = "outer step 3 closed before the push was complete"
    assert [(line.push, line.reason) for line in desk.tape(tape_lines.Dropped)] == [(incomplete, reason)]


def test_without_late_carry_nothing_is_kept() -> None:
    desk, late = with_a_late_upload(late_carry=False)
    (dropped,) = desk.tape(tape_lines.Dropped)
    assert (dropped.push, dropped.reason) == (late, "outer step 1 closed before the push was complete")


def test_a_late_push_rides_with_a_round_in_which_nobody_else_learned_anything() -> None:
    desk, late = with_a_late_upload()
    desk.take(UploadCompleted(late, 16))
    desk.empty(0, 3)
    desk.empty(1, 3)
    assert desk.merges()[-1].contributions == (MergeInput(1, late, 200.0),)


def test_late_pushes_are_dropped_when_the_run_is_finished() -> None:
    desk = Desk(fragments=1, quorum=1)
    desk.ready(2)
    desk.done(0)
    desk.done(1)
    for island in (0, 1):
        desk.push(island, 1)
    desk.merged(1)
    late = desk.offer(1, 2)
    desk.push(0, 2)
    desk.at(desk.settings.upload_grace_s)
    effects = desk.merged(2)
    lines = [e.line for e in effects if isinstance(e, WriteTape)]
    assert [line.reason for line in lines if isinstance(line, tape_lines.Dropped)] == ["the run is finished"]
    assert DropUpload(late, "the run is finished") in effects


def test_the_last_rounds_wait_for_everybody() -> None:
    desk = Desk(fragments=1, quorum=1, grace_cap_s=0.0)
    desk.ready(2)
    desk.done(0)
    desk.done(1)
    desk.push(0, 1)
    assert not desk.merges()
    desk.push(1, 1)
    assert len(desk.merges()[0].contributions) == 2
