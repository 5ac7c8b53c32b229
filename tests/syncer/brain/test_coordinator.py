"""One run from the first Hello to the exit, with every effect named in order."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import (
    FinalCut,
    Outcome,
    Pull,
    PushAnswer,
    ValueName,
)
from syncer.events import (
    CheckpointFailed,
    CheckpointWritten,
    Commit,
    Event,
    Exit,
    FragmentWritten,
    InitAdopted,
    Log,
    Merge,
    MergeFinished,
    MergeInput,
    OpenUpload,
    Received,
    Send,
    UploadCompleted,
    UploadFailed,
    UploadProgressed,
    WriteTape,
)
from tests.syncer.desk import SESSION, Desk, control, initial_names, pushed


def test_rounds_open_on_every_fragment_when_the_initial_values_are_adopted() -> None:
    desk = Desk(expected_islands=2)
    desk.join(0)
    desk.join(1)
    for fragment in range(2):
        desk.take(UploadCompleted(f"k1.init-1-{fragment}", 16))
    fragments = tuple(tape_lines.FragmentSize(id=f, tensors=1, elements=4, bytes=16) for f in range(2))
    assert desk.take(InitAdopted(initial_names(2))) == [
        WriteTape(tape_lines.Init(run="k5", fragments=fragments, layout=desk.layout.fingerprint)),
        Send(control(0), Pull(SESSION, "k1", 1, 0, 1)),
        Send(control(1), Pull(SESSION, "k3", 1, 0, 1)),
        Send(control(0), Pull(SESSION, "k1", 2, 1, 1)),
        Send(control(1), Pull(SESSION, "k3", 2, 1, 1)),
    ]


def test_a_round_merges_its_answers_in_island_order_and_commits() -> None:
    desk = Desk(quorum=2)
    desk.ready(2)
    later = desk.offer_of(1, 1, steps=1, tokens=10)
    assert desk.take(Received(control(1), later)) == [pushed(1, later), OpenUpload(later.push, "k3", 0, Encoding.F32)]
    assert desk.take(UploadCompleted(later.push, 7)) == [
        Send(control(1), PushAnswer(SESSION, "k3", later.push, Outcome.HELD))
    ]
    desk.now = 4.0
    first = desk.offer(0, 1, steps=2, tokens=10)
    assert desk.take(UploadCompleted(first, 9)) == [
        Send(control(0), PushAnswer(SESSION, "k1", first, Outcome.HELD)),
        Merge(1, 1, 0, (MergeInput(0, first, 50.0), MergeInput(1, later.push, 100.0))),
    ]
    desk.now = 5.0
    name = ValueName(0, 1, "digest-1")
    parts = (
        (0, "k1", first, 2, 50.0, 9),
        (1, "k3", later.push, 1, 100.0, 7),
    )
    line = tape_lines.Commit(
        t=1,
        fragment=0,
        version=1,
        digest="digest-1",
        void=False,
        contributions=tuple(
            tape_lines.Contribution(
                island=island,
                generation=generation,
                push=push,
                base_version=0,
                lag=0,
                steps=steps,
                tokens=10,
                weight=weight,
                bytes=size,
                capture_step=2,
            )
            for island, generation, push, steps, weight, size in parts
        ),
        offenders=(),
        quorum_s=4.0,
        round_s=5.0,
        merge_s=0.5,
    )
    assert desk.merged(1) == [
        WriteTape(line),
        Commit(1, name, (first, later.push)),
        Send(control(0), Pull(SESSION, "k1", 3, 0, 1)),
        Send(control(1), Pull(SESSION, "k3", 3, 0, 1)),
    ]


def test_a_run_ends_with_one_round_per_fragment_the_final_cut_and_exit() -> None:
    desk = Desk(min_islands=2)
    desk.ready(2)
    for t in (1, 2):
        desk.push(0, t)
        desk.push(1, t)
        desk.merged(t)
    desk.done(0)
    assert desk.brain.status().phase == "training"
    desk.done(1)
    assert desk.brain.status().phase == "finishing"
    assert desk.pulled(0) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    for t in (3, 4):
        desk.push(0, t)
        desk.empty(1, t)
        desk.merged(t)
    assert desk.pulled(0) == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
    desk.empty(0, 5)
    desk.empty(1, 5)
    desk.empty(0, 6)
    ending = desk.empty(1, 6)
    cut = (ValueName(0, 3, "digest-3"), ValueName(1, 4, "digest-4"))
    assert ending[-3:] == [
        WriteTape(tape_lines.Final(t=6, versions=(3, 4))),
        Send(control(0), FinalCut(SESSION, "k1", cut)),
        Send(control(1), FinalCut(SESSION, "k3", cut)),
    ]
    assert desk.brain.waiting_for() == "islands 0, 1 to save the final cut"
    assert desk.installed(0) == []
    assert desk.saved(1) == []
    assert desk.saved(0) == [Exit(0, "every island has saved the final cut", finished=True)]
    assert desk.commits() == [(1, 0), (2, 1), (3, 0), (4, 1)]
    assert desk.beat(0, 200) == [] and desk.brain.next_wakeup is None


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (UploadProgressed("k9.1"), "UploadProgressed of k9.1: nobody waits for it any more"),
        (UploadCompleted("k9.1", 16), "UploadCompleted of k9.1: nobody waits for it any more"),
        (UploadFailed("k9.1", "damaged"), "UploadFailed of k9.1: nobody waits for it any more"),
        (MergeFinished(1, 1, "d"), "MergeFinished of outer step 1, attempt 1: nobody waits for it any more"),
        (MergeFinished(99, 1, "d"), "MergeFinished of outer step 99, attempt 1: nobody waits for it any more"),
        (FragmentWritten(7, 0), "FragmentWritten of checkpoint 7, but none is being written"),
    ],
)
def test_an_event_that_comes_too_late_does_nothing_and_is_told(event: Event, text: str) -> None:
    desk = Desk(quorum=2)
    desk.ready(2)
    before = desk.brain.status()
    assert desk.brain.handle(event, now=0.0) == [Log("debug", text)]
    assert desk.brain.status() == before


@pytest.mark.parametrize(
    "event", [InitAdopted(initial_names(2)), CheckpointWritten(1), CheckpointFailed(1, "full")], ids=type
)
def test_an_end_of_what_was_not_begun_is_an_error(event: Event) -> None:
    desk = Desk(quorum=2)
    desk.ready(2)
    with pytest.raises(AssertionError, match="cannot follow|not being written"):
        desk.brain.handle(event, now=0.0)


def test_an_event_that_no_rule_takes_is_named() -> None:
    with pytest.raises(AssertionError, match="no event at all"):
        Desk().brain.handle("no event at all", now=0.0)  # type: ignore[arg-type]
