"""A world from its plan to its end: the cut of the model, the faults that strike, and what a failure says."""

from __future__ import annotations

import re

import pytest

from swift_diloco.core.layout.boxes import tiling_fault
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.simulate.worlds.checkers import Violation
from swift_diloco.simulate.worlds.plans import Fault, FaultKind, IslandPlan, Plan, plan_json
from swift_diloco.simulate.worlds.run import Run, boxes_of, layout_of, owners, run_plan
from syncer.events import Exit

SETTINGS = SyncerSettings(expected_islands=2, quorum=1, sync_every_steps=3, fragments=2, grace_cap_s=0.0)
PLAN = Plan(1, SETTINGS, (IslandPlan(1.0), IslandPlan(1.3, ranks=2)), 9, 0.1, 1.0)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_cut_even_fragments_and_one_of_them_has_the_odd_ones_whole(ranks: int) -> None:
    island, layout = IslandPlan(1.0, ranks=ranks), layout_of(4)
    assert tiling_fault(layout, [box for rank in range(ranks) for box in boxes_of(island, rank, layout)]) is None
    assert [owners(island, fragment) for fragment in range(4)] == [
        tuple(range(ranks)),
        (1 % ranks,),
        tuple(range(ranks)),
        (3 % ranks,),
    ]


def test_calm_world_ends_with_the_final_cut_everywhere() -> None:
    run = run_plan(PLAN)
    assert run.syncer.exit is not None and run.syncer.exit.code == 0
    assert {island: (life.finished, life.step) for island, life in run.lives.items()} == {0: (True, 9), 1: (True, 9)}
    assert run.world.fired == {}


def test_fault_strikes_nobody_who_is_not_there() -> None:
    run = Run(PLAN)
    for kind in FaultKind:
        if kind not in (FaultKind.CRASH, FaultKind.STOP, FaultKind.DISK_FULL, FaultKind.DISK_SLOW):
            run.strike(Fault(0.0, kind, island=7))
    run.syncer.exit = Exit(0, "over")
    run.strike(Fault(0.0, FaultKind.STOP))
    assert run.world.fired == {} and run.syncer.disk.full == 0


@pytest.mark.parametrize(
    "kind",
    [
        FaultKind.KILL,
        FaultKind.VANISH,
        FaultKind.CUT,
        FaultKind.CUT_RANK,
        FaultKind.PARTITION,
        FaultKind.CLOG,
        FaultKind.STALL,
        FaultKind.REPLAY,
    ],
)
def test_fault_of_an_island_happens_once_and_the_world_heals(kind: FaultKind) -> None:
    plan = Plan(1, SETTINGS, PLAN.islands, 30, 0.1, 1.0, faults=(Fault(9.0, kind, island=1, seconds=3.0),))
    run = run_plan(plan)
    assert run.world.fired[kind.value] == 1
    assert run.syncer.exit is not None and run.syncer.exit.code == 0


def test_world_that_does_not_end_says_who_waits_for_whom_and_which_plan_replays_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("swift_diloco.simulate.worlds.run.HEALED_LIMIT_S", 5.0)
    with pytest.raises(Violation, match=r"no end by 5 s: .*; island 0 alive at \d+: ") as raised:
        run_plan(PLAN)
    note, *stories = raised.value.__notes__
    assert note == f"seed 1; the plan: {plan_json(PLAN)}"
    brains = [re.match(r"the last \d+ events of (\w+)", story) for story in stories]
    assert [brain[1] for brain in brains if brain is not None] == ["syncer", "island", "island"]


def test_island_that_ends_with_other_values_is_a_violation() -> None:
    run = Run(PLAN)
    run.world.run(run._over, 1000.0)
    run.lives[1].locals[0].value += 1.0
    with pytest.raises(Violation, match="island 1 ends with"):
        run.check_end()
