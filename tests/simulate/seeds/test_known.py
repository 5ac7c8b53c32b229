"""Worlds that once found a bug. Kept as plans, so that they stay the same whatever becomes of the generator."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_diloco.simulate.worlds.plans import plan_from_json
from swift_diloco.simulate.worlds.run import run_plan

KNOWN = sorted((Path(__file__).parent / "known").glob("*.json"))


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_a_world_that_once_failed_passes(path: Path) -> None:
    run_plan(plan_from_json(path.read_bytes()))


def test_the_known_worlds_are_found() -> None:
    assert len(KNOWN) >= 9
