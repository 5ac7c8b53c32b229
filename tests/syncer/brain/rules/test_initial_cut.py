"""The initial values: asked of island 0, one transaction of one generation."""

from __future__ import annotations

from itertools import product

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import (
    Contract,
    InitWanted,
    Joined,
    RankWelcome,
    Welcome,
)
from swift_diloco.core.layout.fragments import FragmentPlan
from syncer.brain.rules.initial_cut import FOLLOWS, Progress
from syncer.events import (
    AdoptInit,
    AdoptLayout,
    DropUpload,
    InitAdopted,
    OpenUpload,
    RegisterRank,
    Send,
    UploadCompleted,
    UploadFailed,
    WriteTape,
)
from tests.syncer.desk import SESSION, Desk, bulk, control, initial_names, messages


def test_members_that_join_later_are_given_the_values_and_no_init() -> None:
    desk = Desk()
    desk.ready(1)
    effects = desk.join(1)
    welcome, rank, joined = messages(effects)
    assert isinstance(welcome, Welcome) and welcome.values == initial_names(2) and welcome.run == "k3"
    assert isinstance(rank, RankWelcome) and rank.values == initial_names(2)
    assert isinstance(joined, Joined)


def test_init_is_asked_again_when_its_generation_ends() -> None:
    desk = Desk(reconnect_grace_s=5.0)
    desk.join(0)
    desk.take(UploadCompleted("k1.init-1-0", 16))
    desk.gone(0)
    dropped = desk.at(5.0)
    assert dropped[2:] == [
        DropUpload("k1.init-1-0", "the initial values are asked for again: its generation ended"),
    ]
    effects = desk.join(0, life=2)
    assert messages(effects)[-1] == InitWanted(SESSION, "k3", ("k3.init-2-0", "k3.init-2-1"))
    assert desk.take(UploadCompleted("k1.init-1-1", 16)) == []


def test_init_is_asked_again_when_an_upload_fails() -> None:
    desk = Desk()
    desk.join(0)
    effects = desk.take(UploadFailed("k1.init-1-0", "damaged"))
    assert effects[0] == DropUpload("k1.init-1-1", "the initial values are asked for again: damaged")
    assert messages(effects) == [InitWanted(SESSION, "k1", ("k1.init-2-0", "k1.init-2-1"))]


def test_init_waits_for_island_0_however_many_others_are_there() -> None:
    desk = Desk(expected_islands=2)
    for island in (1, 2, 3):
        desk.join(island)
    assert desk.brain.waiting_for() == "island 0, which provides the initial values, to join"
    assert isinstance(messages(desk.join(0))[-1], InitWanted)


def test_cold_start_asks_island_0_once_all_expected_are_there() -> None:
    desk = Desk(expected_islands=2, island_lease_s=60)
    plan = FragmentPlan(((0,), (1,)))
    contract = Contract(sync_every_steps=1, island_lease_s=60.0, align="carry")
    assert desk.join(1) == [
        AdoptLayout(desk.layout, plan),
        Send(control(1), Welcome(SESSION, "k1", "nonce-1", "k2", "", contract, plan)),
        RegisterRank("k1", 1, 0, bulk(1), desk.boxes()),
        Send(bulk(1), RankWelcome(SESSION, "k1", 0)),
        Send(control(1), Joined(SESSION, "k1")),
        WriteTape(tape_lines.Joined(island=1, generation="k1", step=0, reason="")),
    ]
    assert desk.brain.waiting_for() == "islands to join (1 of 2 are here)"
    assert desk.join(0)[-4:] == [
        WriteTape(tape_lines.Joined(island=0, generation="k3", step=0, reason="")),
        OpenUpload("k3.init-1-0", "k3", 0, Encoding.F32),
        OpenUpload("k3.init-1-1", "k3", 1, Encoding.F32),
        Send(control(0), InitWanted(SESSION, "k3", ("k3.init-1-0", "k3.init-1-1"))),
    ]
    assert desk.brain.waiting_for() == "the initial values of island 0"
    assert desk.take(UploadCompleted("k3.init-1-1", 16)) == []
    assert desk.take(UploadCompleted("k3.init-1-0", 16)) == [AdoptInit(("k3.init-1-0", "k3.init-1-1"), "k5")]


MOVES = {
    (Progress.UNASKED, Progress.ARRIVING),
    (Progress.ARRIVING, Progress.UNASKED),
    (Progress.ARRIVING, Progress.ADOPTING),
    (Progress.ADOPTING, Progress.NAMED),
    (Progress.NAMED, Progress.BEGUN),
}


@pytest.mark.parametrize(("old", "new"), list(product(Progress, Progress)))
def test_the_initial_values_go_from_state_to_state_as_the_table_says(old: Progress, new: Progress) -> None:
    assert (new in FOLLOWS[old]) == ((old, new) in MOVES)
    initial = Desk().brain._initial
    initial._progress = old
    if (old, new) in MOVES:
        initial._enter(new)
        assert initial._progress is new
    else:
        with pytest.raises(AssertionError, match=f"the initial values: {new.value} cannot follow {old.value}"):
            initial._enter(new)


def test_a_provider_that_leaves_while_its_values_are_adopted_takes_nothing_back() -> None:
    desk = Desk(reconnect_grace_s=5.0)
    desk.join(0)
    for fragment in range(2):
        desk.take(UploadCompleted(f"k1.init-1-{fragment}", 16))
    desk.gone(0)
    assert not any(isinstance(effect, DropUpload) for effect in desk.at(5.0))
    (line,) = [effect for effect in desk.take(InitAdopted(initial_names(2))) if isinstance(effect, WriteTape)]
    assert isinstance(line.line, tape_lines.Init) and line.line.run == "k3"
    assert desk.brain.status().versions == (0, 0)
