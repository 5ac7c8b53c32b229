"""Random scenarios of process death; each prints itself when it fails, and `--replay` runs it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.chaos.__main__ import run
from tests.e2e.chaos.scenario import draw
from tests.forkserver.forkserver import ForkServer

SEEDS = range(1, 21)


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_killed_all_islands_end_with_the_same_good_values(
    seed: int, tmp_path: Path, server: ForkServer
) -> None:
    run(draw(seed, syncer_faults=True), tmp_path / "run", server)


def test_a_seed_gives_always_the_same_scenario_and_seeds_differ() -> None:
    first, second = draw(7, syncer_faults=True), draw(7, syncer_faults=True)
    assert first == second != draw(8, syncer_faults=True)
