"""Nobody waits for what cannot come: worlds in which every island was once waited for that might not push."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats.tape_lines import Commit
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.simulate.worlds.plans import Fault, FaultKind, IslandPlan, Plan
from swift_diloco.simulate.worlds.run import Run

FAULTS = (Fault(40.0, FaultKind.CLOG, island=0, seconds=200.0), Fault(45.0, FaultKind.POISON, island=1))
"""The push of island 0 is late and carried; island 1 sends what is not finite, so that the round is void."""


@pytest.mark.parametrize(("align", "seed"), [("overwrite", 3), ("overwrite", 10), ("carry", 13), ("carry", 109)])
def test_an_island_whose_push_is_carried_over_a_void_round_is_no_reason_to_wait(align: str, seed: int) -> None:
    """Its anchor is spent and its version stays: it can answer no round of that fragment, and need not."""
    settings = SyncerSettings(expected_islands=2, sync_every_steps=8, fragments=2, align=align)  # type: ignore[arg-type]
    run = Run(Plan(seed, settings, (IslandPlan(1.0), IslandPlan(1.0)), 400, 0.05, 5.0, faults=FAULTS))
    state = run.syncer.brain._state

    def voided() -> bool:
        return any(line.void and 1 in line.offenders for line in run.history.lines(Commit))

    run.world.run(voided, 300.0)
    assert voided() and state.values is not None
    held = [*state.late.values(), *state.carried.values()]
    present, anchors = state.values.present, run.lives[0].session.anchors
    assert [late for late in held if late.answer.island == 0 and anchors[late.fragment].name == present[late.fragment]]
    run.lives[1].kill(silently=False)
    before = state.committed
    run.world.run(lambda: run.syncer.exit is not None, run.world.now + 4000.0)
    assert run.syncer.exit is not None and run.syncer.exit.code == 0
    assert state.committed > before + 10
