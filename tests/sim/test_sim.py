"""Seeds of simulated worlds, calm and with faults. A failure names the seed that replays it."""

from __future__ import annotations

import pytest

from tests.sim.checkers import lines
from tests.sim.run import Run, plan_of

CALM = range(20)
ROUGH = range(1000, 1040)


@pytest.mark.parametrize("seed", CALM)
def test_a_calm_world_ends_with_one_cut_everywhere(seed: int) -> None:
    run = Run(plan_of(seed, faults=False))
    run.finish()
    assert not run.world.fired
    assert any(not line["void"] for line in lines(run.syncer.tape, "commit")), "nothing was learned"


@pytest.mark.parametrize("seed", ROUGH)
def test_a_rough_world_keeps_every_rule_and_ends(seed: int) -> None:
    run = Run(plan_of(seed, faults=True))
    run.finish()


def test_every_kind_of_fault_happens_in_the_rough_worlds() -> None:
    fired: set[str] = set()
    for seed in ROUGH[:12]:
        run = Run(plan_of(seed, faults=True))
        run.finish()
        fired |= set(run.world.fired)
    assert fired >= {"death", "silent death", "cut", "damaged upload", "poisoned delta"}
