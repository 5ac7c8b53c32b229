"""Worlds that once found a bug. Kept as plans, so that they stay the same whatever becomes of the generator."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_diloco.simulate.worlds.plans import plan_from_json
from swift_diloco.simulate.worlds.run import run_plan

FOLDER = Path(__file__).parent / "known"
KNOWN = (
    "dropped-push-comes-back-with-a-checkpoint",
    "final-cut-lost-with-a-full-disk",
    "late-progress-is-pushed-again-after-a-restart",
    "progress-is-pushed-again-after-a-restart",
    "progress-is-pushed-again-after-a-rewind",
    "progress-is-pushed-again-soon-after-the-start",
    "saved-is-never-told",
    "state-lost-with-a-full-disk",
    "syncer-dies-on-its-last-word",
    "trains-one-step-past-the-cut",
    "trains-one-step-past-the-cut-two-ranks",
    "wants-values-after-it-finished",
)


@pytest.mark.parametrize("name", KNOWN)
def test_a_world_that_once_failed_passes_and_its_faults_strike(name: str) -> None:
    plan = plan_from_json((FOLDER / f"{name}.json").read_bytes())
    run = run_plan(plan)
    assert bool(run.world.fired) == bool(plan.faults)


def test_every_world_that_is_kept_is_run() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"{name}.json" for name in KNOWN)
