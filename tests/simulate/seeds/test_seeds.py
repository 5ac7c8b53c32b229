"""Seeds of simulated worlds, calm and with faults. A failure names the seed and the plan that replay it."""

from __future__ import annotations

from collections import Counter

import pytest

from swift_diloco.core.formats.tape_lines import Commit
from swift_diloco.simulate.worlds.plans import FaultKind, calm_plan, rough_plan
from swift_diloco.simulate.worlds.run import run_plan

CALM = range(40)
ROUGH = range(200)


@pytest.mark.parametrize("seed", CALM)
def test_a_calm_world_learns_and_ends_with_one_cut_everywhere(seed: int) -> None:
    run = run_plan(calm_plan(seed))
    assert set(run.world.fired) <= {"missed the end"}, "an island may start too late, and that is all"
    assert any(not line.void for line in run.history.lines(Commit)), "nothing was learned"
    begun_s = min(island.start_s for island in run.plan.islands)
    punctual = [life for i, life in run.lives.items() if run.plan.islands[i].start_s <= begun_s + 5.0]
    assert punctual and all(life.finished for life in punctual)


@pytest.mark.parametrize("seed", ROUGH)
def test_a_rough_world_keeps_every_property_and_ends(seed: int) -> None:
    run_plan(rough_plan(seed))


def test_every_kind_of_fault_happens_in_the_rough_worlds() -> None:
    fired: Counter[str] = Counter()
    for seed in ROUGH[:40]:
        fired.update(run_plan(rough_plan(seed)).world.fired)
    assert {kind.value for kind in FaultKind} <= set(fired)
