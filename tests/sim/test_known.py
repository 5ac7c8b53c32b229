"""Seeds that once found a bug, each with the bug's name."""

from __future__ import annotations

import pytest

from swift_diloco.simulate.plans import plan_of, rough_plan
from swift_diloco.simulate.run import run_plan

ISLANDS_ONLY = {
    75: "an island that meets the final cut at its start trains one step past it",
    112: "the same, with two ranks",
    123: "a link cut after the final cut is installed leaves the island with values it does not want",
    37: "a link that breaks after the last save keeps Saved from the syncer, which then lingers",
}
"""Faults of islands and links."""

EVERYTHING = {
    1452: "progress carried onto a newer anchor is pushed again after a restart from an older checkpoint",
    1906: "the same, for a push that was late and carried",
    3440: "the same, soon after the start",
    10469: "the same, where the syncer lost the value that the checkpoint stands on",
    5305: "the syncer dies on its last word, with a full disk behind it",
}
"""Faults of the syncer and its disk as well."""


@pytest.mark.parametrize("seed", ISLANDS_ONLY, ids=ISLANDS_ONLY.get)
def test_seed_that_once_failed_passes(seed: int) -> None:
    run_plan(plan_of(seed, faults=True))


@pytest.mark.parametrize("seed", EVERYTHING, ids=EVERYTHING.get)
def test_seed_that_once_failed_passes_with_a_syncer_that_fails(seed: int) -> None:
    run_plan(rough_plan(seed))
