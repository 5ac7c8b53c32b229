"""The moments at which a death is hardest to get right, each on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.tools.audit.auditing import audit
from tests.e2e.chaos.__main__ import run
from tests.e2e.chaos.checks import standing
from tests.e2e.chaos.figures import costs
from tests.e2e.chaos.scenario import SYNCER, Fault, Scenario
from tests.e2e.chaos.world import World
from tests.forkserver.forkserver import ForkServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def steps_between(world: World, island: int, begin: float, end: float) -> list[int]:
    """The steps that an island took in a time."""
    said = world.islands[island].said
    return [row["step"] for row in said if "blocked_s" in row and "time" in row and begin < row["time"] < end]


def commits(world: World) -> list[tape_lines.Commit]:
    return [line for line in standing(world.syncer.tape) if isinstance(line, tape_lines.Commit) and not line.void]


def test_survivors_are_not_blocked_and_commit_within_a_second_of_a_kill(tmp_path: Path, server: ForkServer) -> None:
    scenario = Scenario(steps=120, faults=(Fault(1, "kill", "push", after=50, away_s=1.5),))
    world = run(scenario, tmp_path / "run", server)
    (cost,) = costs(world)
    assert cost.survivors_commit_s is not None and cost.survivors_commit_s < 1.0, cost
    assert cost.survivors_blocked_s is not None and cost.survivors_blocked_s < 0.5, cost
    assert cost.contributes_again_s is not None and cost.steps_lost <= scenario.save_every, cost


def test_pause_whose_syncer_dies_ends_after_a_lease_and_the_islands_train_on(
    tmp_path: Path, server: ForkServer
) -> None:
    scenario = Scenario(
        ranks=(1, 2),
        slowness=(1.0, 1.0),
        steps=180,
        min_islands=2,
        lease_s=1.0,
        faults=(
            Fault(1, "kill", "step", after=20, away_s=6.0),
            Fault(SYNCER, "kill", "left", delay_s=0.5, away_s=4.0),
        ),
    )
    world = run(scenario, tmp_path / "run", server)
    island, syncer = world.struck
    assert len(steps_between(world, 0, island.at + 0.5, syncer.at)) <= 2, "it was not paused"
    assert len(steps_between(world, 0, syncer.at + 2.5, syncer.at + 3.9)) >= 10, "the pause did not end"
    during = [line for line in world.syncer.tape if isinstance(line, tape_lines.Commit) and island.at + 1 < line.time]
    assert all(line.void or len(line.contributions) >= 2 for line in during)


def test_island_that_dies_between_the_final_cut_and_its_last_save_gets_the_cut_again(
    tmp_path: Path, server: ForkServer
) -> None:
    scenario = Scenario(steps=40, faults=(Fault(1, "kill", "final", away_s=0.3),))
    world = run(scenario, tmp_path / "run", server)
    assert "every island has saved the final cut" in world.syncer.log()
    assert world.syncer.life == 1 and world.islands[1].life == 2


def test_finished_island_counts_with_empty_answers_while_slower_ones_train(tmp_path: Path, server: ForkServer) -> None:
    scenario = Scenario(steps=40, slowness=(1.0, 3.0, 3.0), quorum=3)
    world = run(scenario, tmp_path / "run", server)
    finished_at = next(row["time"] for row in world.islands[0].said if row.get("event") == "finish")
    later = [line for line in commits(world) if line.time > finished_at]
    assert len(later) >= 10
    with_work = [part for line in later[6:] for part in line.contributions if part.island == 0 and part.steps]
    assert not with_work
    assert sum(any(part.island == 0 for part in line.contributions) for line in later[6:]) >= 3


@pytest.mark.parametrize("durable", [False, True])
def test_syncer_killed_between_a_publication_and_its_checkpoint_loses_only_what_it_says(
    tmp_path: Path, server: ForkServer, durable: bool
) -> None:
    kill = Fault(SYNCER, "kill", "commit", after=9, away_s=0.5)
    scenario = Scenario(steps=80, checkpoint_every=6, durable=durable, faults=(kill,))
    world = run(scenario, tmp_path / "run", server)
    (resumed,) = [line for line in world.syncer.tape if isinstance(line, tape_lines.Resumed)]
    before = world.syncer.tape[: world.syncer.tape.index(resumed)]
    published = max(line.version for line in before if isinstance(line, tape_lines.Fetched))
    if durable:  # The tape may tell of a commit that was on its way to the disk, and so to nobody.
        assert published <= resumed.t >= 8
    else:
        assert resumed.t < published
        assert audit(world.syncer.folder / "tape.jsonl").lost_commits >= published - resumed.t
