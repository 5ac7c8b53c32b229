"""Unlike islands are the normal case: with default settings every island's work is merged, whatever its speed.

Undisturbed worlds of the real brains. A *share* is that of an island's successful local steps, over all fragments, that
is in the global values at the end.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import pytest

from swift_diloco.core.formats.tape_lines import Commit
from swift_diloco.core.settings.syncer_settings import load_syncer_settings
from swift_diloco.simulate.worlds import run as worlds
from swift_diloco.simulate.worlds.plans import IslandPlan, Plan
from swift_diloco.simulate.worlds.run import Run
from swift_diloco.simulate.worlds.truth import Unit

FRAGMENTS = 4
OUTER_STEPS = 80
LEAST = 0.95


def finished(*step_s: float, preset: str = "", transfer_s: float = 0.2, **settings: Any) -> Run:
    """A run of islands with these step times, ended by its budget of outer steps."""
    given = {"fragments": FRAGMENTS, "outer_steps_max": OUTER_STEPS, "expected_islands": len(step_s)} | settings
    chosen = msgspec.structs.replace(load_syncer_settings({}, preset), **given)
    run = Run(Plan(1, chosen, tuple(map(IslandPlan, step_s)), 10**9, delay_s=0.02, transfer_s=transfer_s))
    run.finish()
    return run


def shares(run: Run) -> list[float]:
    """Per island."""
    merged: dict[tuple[int, int], set[Unit]] = defaultdict(set)
    for each in run.history.merged:
        for unit in each.units:
            merged[unit[0], each.fragment].add(unit)
    lives = sorted(run.lives.items())
    return [sum(len(merged[i, f]) for f in range(FRAGMENTS)) / (FRAGMENTS * life.step) for i, life in lives]


@pytest.mark.parametrize("ratio", [1.0, 1.01, 1.05, 1.1, 1.25, 2.0, 4.0, 8.0])
def test_the_slower_of_two_islands_has_its_steps_merged(ratio: float) -> None:
    assert min(shares(finished(1.0, ratio))) >= LEAST


@pytest.mark.parametrize("preset", ["pretrain", "finetune", "quickstart"])
def test_presets_lose_no_more_than_the_defaults(preset: str) -> None:
    assert min(shares(finished(1.0, 1.3, preset=preset, min_islands=1))) >= LEAST


@pytest.mark.parametrize("islands", [(1.0, 1.1, 1.7, 3.0), (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0)], ids=len)
def test_many_islands_of_many_speeds_have_their_steps_merged(islands: tuple[float, ...]) -> None:
    assert min(shares(finished(*islands))) >= LEAST


@pytest.mark.parametrize(("step_s", "transfer_s"), [(0.05, 0.02), (30.0, 5.0)])
@pytest.mark.parametrize("ratio", [1.02, 8.0])
def test_short_and_long_steps_are_merged_alike(
    step_s: float, transfer_s: float, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worlds, "HEALED_LIMIT_S", 1e6)  # long steps make a long run
    assert min(shares(finished(step_s, step_s * ratio, transfer_s=transfer_s))) >= LEAST


def test_what_overwrites_local_values_starves_the_slower_island() -> None:
    """Why that is no default: this is what it costs."""
    fast, slow = shares(finished(1.0, 1.25, align="overwrite"))
    assert fast > 0.8 and slow < 0.1


def test_equal_islands_with_long_steps_answer_the_same_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grace is measured in steps: half a step apart, both are in most commits."""
    monkeypatch.setattr(worlds, "HEALED_LIMIT_S", 1e6)
    run = finished(30.0, 30.0, transfer_s=1.0)
    commits = [line for line in run.history.lines(Commit) if not line.void]
    assert sum(len(line.contributions) for line in commits) / len(commits) > 1.5
