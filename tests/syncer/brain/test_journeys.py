"""How far a push travels through the rules: forward, and back as seldom as can be.

A *stay* is a visit to a module that decides (the coordinator or a rule) between two others; memory is asked in passing.
Coming back to a module that was left is a *return*. Rules that send a push to and fro are hard to follow and to change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from swift_diloco.core.formats.messages import PushOffer
from syncer.brain.coordinator import Coordinator
from syncer.events import Event, MergeFinished, Received, UploadCompleted, UploadProgressed
from tests.syncer.desk import Desk, control

RETURNS_MAX = 5
DECIDE = ("syncer.brain.coordinator", "syncer.brain.rules.")
CONSIDER = Coordinator._consider.__code__


@contextmanager
def stays() -> Iterator[list[str]]:
    """Where the brain was meanwhile, in order. What it considers after every event is no part of a journey."""
    visited: list[str] = []
    rooms: list[str] = []
    considering = False

    def look(frame: FrameType, what: str, _: object) -> None:
        nonlocal considering
        if what in ("call", "return") and frame.f_code is CONSIDER:
            considering = what == "call"
            return
        room = str(frame.f_globals.get("__name__", ""))
        if considering or not room.startswith(DECIDE):
            return
        if what == "call":
            rooms.append(room)
        elif what == "return":
            rooms.pop()
        else:
            return
        if rooms and visited[-1:] != rooms[-1:]:
            visited.append(rooms[-1])

    sys.setprofile(look)
    try:
        yield visited
    finally:
        sys.setprofile(None)


def journey(desk: Desk, event: Event) -> list[str]:
    """The stays of one event."""
    with stays() as visited:
        desk.brain.handle(event, now=desk.now)
    return [room.rpartition(".")[2] for room in visited]


def returns(visited: list[str]) -> int:
    return len(visited) - len(set(visited))


def between_parts(ways: Iterable[list[str]]) -> list[str]:
    """The stays in the rules over several events. The coordinator, which takes each to its rule, is none of them."""
    stays = [room for way in ways for room in way if room != "coordinator"]
    return [room for room, before in zip(stays, [None, *stays], strict=False) if room != before]


def answered(desk: Desk) -> PushOffer:
    """Island 0 has answered outer step 1; island 1's offer of more than the last step is to come."""
    desk.ready(2)
    desk.push(0, 1)
    return desk.offer_of(1, 1, capture_step=7)


def test_an_offer_goes_through_admission_to_its_round() -> None:
    desk = Desk(quorum=2)
    offer = answered(desk)
    visited = journey(desk, Received(control(1), offer))
    assert {"admission", "gathering"} <= set(visited)
    assert returns(visited) <= RETURNS_MAX, visited


def test_an_upload_that_completes_a_round_goes_on_to_its_merge() -> None:
    desk = Desk(quorum=2)
    offer = answered(desk)
    desk.take(Received(control(1), offer))
    visited = journey(desk, UploadCompleted(offer.push, 16))
    assert {"gathering", "closing"} <= set(visited)
    assert returns(visited) <= RETURNS_MAX, visited


@pytest.mark.parametrize("checkpoint_path", ["", "there"])
def test_a_merge_goes_on_to_its_commit_or_to_the_checkpoint_that_it_waits_for(checkpoint_path: str) -> None:
    desk = Desk(quorum=2, checkpoint_path=checkpoint_path)
    offer = answered(desk)
    desk.take(Received(control(1), offer))
    desk.take(UploadCompleted(offer.push, 16))
    visited = journey(desk, MergeFinished(1, 1, "digest-1"))
    assert visited == ["coordinator", "closing", "durability", "closing", "coordinator"]


@pytest.mark.parametrize("settings", [{}, {"checkpoint_path": "there"}], ids=["plain", "with checkpoints"])
def test_the_whole_way_of_a_push_into_a_value_sees_few_parts_twice(settings: dict[str, Any]) -> None:
    desk = Desk(quorum=2, **settings)
    offer = answered(desk)
    ahead: tuple[Event, ...] = (
        Received(control(1), offer), UploadProgressed(offer.push), UploadCompleted(offer.push, 16),
        MergeFinished(1, 1, "digest-1"),
    )  # fmt: skip
    parts = between_parts(journey(desk, event) for event in ahead)
    assert {"speaking", "admission", "gathering", "closing"} <= set(parts)
    assert returns(parts) <= RETURNS_MAX, parts


def test_the_whole_way_of_a_late_push_into_a_value_sees_few_parts_twice() -> None:
    desk = Desk(quorum=1)
    desk.ready(2)
    offer = desk.offer_of(1, 1, capture_step=7)
    desk.push(0, 1)
    way = [journey(desk, event) for event in (Received(control(1), offer), UploadCompleted(offer.push, 16))]
    desk.merged(1)
    for t in (2, 3):
        desk.take(Received(control(0), desk.offer_of(0, t, push=f"k1.{t}0")))
    way.append(journey(desk, UploadCompleted("k1.30", 16)))
    (*_, merge) = desk.merges()
    way.append(journey(desk, MergeFinished(merge.t, 1, "digest-3")))
    parts = between_parts(way)
    assert {"speaking", "admission", "late_pushes", "gathering", "closing"} <= set(parts)
    assert returns(parts) <= RETURNS_MAX, parts


def test_the_count_sees_a_rule_that_sends_its_caller_to_and_fro() -> None:
    assert (
        returns(["coordinator", "gathering", "late_pushes", "gathering", "late_pushes", "gathering", "coordinator"])
        == 4
    )
