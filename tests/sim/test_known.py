"""Seeds that once found a bug, each with the bug's name."""

from __future__ import annotations

import pytest

from tests.sim.run import Run, plan_of

FIXED = {
    1017: "an island that joined again was never told that its held push was dropped",
    2470: "a link cut while the final cut is fetched finishes the island with stale anchors",
    3044: "the same, with another order of fetches",
    3404: "an island that meets the final cut at its start trains one step past it",
    2119: "an empty push followed by an install under align=carry has no capture to subtract",
    2499: "an anchor held from an earlier life is not released by a Dropped that names it",
}


@pytest.mark.parametrize("seed", FIXED, ids=FIXED.get)
def test_seed_that_once_failed_passes(seed: int) -> None:
    Run(plan_of(seed, faults=True)).finish()
