"""Commits: their order, void rounds, releases, independence of arrival order, and the pace of launches."""

from __future__ import annotations

from itertools import permutations

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import (
    Dropped,
    Pull,
    PushAnswer,
    Welcome,
)
from syncer.events import (
    Commit,
    DiscardMerge,
    Effect,
    Merge,
    MergeInput,
    Send,
    UploadCompleted,
    WriteTape,
)
from tests.syncer.desk import SESSION, Desk, control, initial_names, messages

# -- Commits ----------------------------------------------------------------------------------------------------------


def test_commits_are_in_order_though_merges_end_in_any_order() -> None:
    desk = Desk(fragments=3, pipeline=3)
    desk.ready(1)
    for t in (1, 2, 3):
        desk.push(0, t)
    assert [m.t for m in desk.merges()] == [1, 2, 3]
    assert desk.merged(3) == [] and desk.merged(2) == []
    assert [e.t for e in desk.merged(1) if isinstance(e, Commit)] == [1, 2, 3]


def test_the_end_of_a_merge_nobody_waits_for_changes_nothing() -> None:
    desk = Desk()
    desk.ready(1)
    assert desk.merged(1) == [] and desk.merged(7) == []
    desk.push(0, 1)
    assert desk.merged(1, attempt=2) == []


def test_a_release_reaches_the_present_generation_of_an_island_that_joined_again() -> None:
    desk = Desk(quorum=2, min_islands=2)
    desk.ready(2)
    desk.push(0, 1)
    desk.gone(0)
    anchor = initial_names(2)[0]
    (welcome,) = (m for m in messages(desk.join(0, life=2)) if isinstance(m, Welcome))
    assert welcome.held == (anchor,)
    desk.push(1, 1)
    why = "outer step 1 was void: deltas of islands [1] made a result that is not finite"
    effects = desk.merged(1, finite=False, offenders=(1,))
    assert Send(control(0, 2), Dropped(SESSION, desk.generation[0], "k1.1", why, anchor)) in effects
    assert isinstance(messages(desk.push(0, 3, life=2))[0], PushAnswer)


def test_a_round_without_any_progress_is_void_and_the_outer_step_goes_on() -> None:
    desk = Desk()
    desk.ready(1)
    effects = desk.empty(0, 1)
    push = "k1.1"
    reason = "outer step 1 was void: no island had learned anything"
    assert [type(e.line) for e in effects if isinstance(e, WriteTape)] == [tape_lines.Commit, tape_lines.Dropped]
    line = desk.tape(tape_lines.Commit)[0]
    assert (line.t, line.version, line.void) == (1, 0, True)
    assert Send(control(0), Dropped(SESSION, "k1", push, reason)) in effects
    assert Send(control(0), Pull(SESSION, "k1", 3, 0, 1)) in effects
    assert not desk.merges() and not desk.commits()


def test_a_void_round_waits_for_its_turn() -> None:
    desk = Desk()
    desk.ready(1)
    assert not [e for e in desk.empty(0, 2) if isinstance(e, WriteTape)]
    desk.push(0, 1)
    desk.merged(1)
    assert [(line.t, line.void) for line in desk.tape(tape_lines.Commit)] == [(1, False), (2, True)]


def test_a_result_that_is_not_finite_is_void_and_releases_every_anchor() -> None:
    desk = Desk(quorum=2, min_islands=2)
    desk.ready(2)
    desk.push(0, 1)
    desk.push(1, 1)
    effects = desk.merged(1, finite=False, offenders=(1,))
    why = "outer step 1 was void: deltas of islands [1] made a result that is not finite"
    assert effects[1:6] == [
        Send(control(0), Dropped(SESSION, "k1", "k1.1", why, initial_names(2)[0])),
        WriteTape(tape_lines.Dropped(island=0, push="k1.1", t=1, fragment=0, reason=why)),
        Send(control(1), Dropped(SESSION, "k3", "k3.2", "the delta was not finite", initial_names(2)[0])),
        WriteTape(tape_lines.Dropped(island=1, push="k3.2", t=1, fragment=0, reason="the delta was not finite")),
        DiscardMerge(1, ("k1.1", "k3.2")),
    ]
    line = desk.tape(tape_lines.Commit)[0]
    assert (line.void, line.offenders, line.version) == (True, (1,), 0)
    for island in (0, 1):
        desk.push(island, 3)
    desk.push(0, 2)
    desk.push(1, 2)
    desk.merged(2)
    desk.merged(3)
    assert desk.commits() == [(2, 1), (3, 0)]


def test_a_round_is_merged_without_the_island_that_spoilt_it_when_enough_others_are_left() -> None:
    desk = Desk(quorum=2)
    desk.ready(2)
    desk.push(0, 1)
    desk.push(1, 1)
    assert desk.merged(1, finite=False, offenders=(1,)) == [
        DiscardMerge(1, ("k3.2",)),
        Send(control(1), Dropped(SESSION, "k3", "k3.2", "the delta was not finite", initial_names(2)[0])),
        WriteTape(tape_lines.Dropped(island=1, push="k3.2", t=1, fragment=0, reason="the delta was not finite")),
        Merge(1, 1, 0, (MergeInput(0, "k1.1", 200.0),)),
    ]
    desk.gone(1)
    desk.merged(1)
    (line,) = desk.tape(tape_lines.Commit)
    assert [part.island for part in line.contributions] == [0]
    assert desk.commits() == [(1, 0)]


def test_a_push_without_tokens_has_no_weight_and_is_not_merged() -> None:
    desk = Desk(quorum=2)
    desk.ready(2)
    desk.push(0, 1, tokens=0)
    desk.push(1, 1)
    assert desk.merges()[0].contributions == (MergeInput(1, "k3.2", 200.0),)
    assert [e.uploads for e in desk.merged(1) if isinstance(e, Commit)] == [("k1.1", "k3.2")]


def test_arrival_order_changes_neither_the_merge_nor_the_commit() -> None:
    seen: list[list[Effect]] = []
    for order in permutations(range(3)):
        desk = Desk(quorum=3)
        desk.ready(3)
        offers = {i: desk.offer(i, 1, push=f"{desk.generation[i]}.p", tokens=10 + i) for i in range(3)}
        for island in order:
            desk.take(UploadCompleted(offers[island], 16))
        desk.merged(1)
        seen.append([e for e in desk.effects if isinstance(e, Merge | Commit) or _is_commit_line(e)])
    assert all(each == seen[0] for each in seen) and len(seen[0]) == 3


def _is_commit_line(effect: Effect) -> bool:
    return isinstance(effect, WriteTape) and isinstance(effect.line, tape_lines.Commit)


# -- Pace -------------------------------------------------------------------------------------------------------------
