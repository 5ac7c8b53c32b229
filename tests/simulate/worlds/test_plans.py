"""Plans are data: they print, what was printed replays, and a seed always stands for the same world."""

from __future__ import annotations

from swift_diloco.simulate.worlds.plans import SYNCER_KINDS, plan_from_json, plan_json, plan_of, rough_plan
from swift_diloco.simulate.worlds.run import run_plan


def test_a_printed_plan_replays_the_same_world() -> None:
    plan = plan_of(3, faults=True)
    again = plan_from_json(plan_json(plan))
    assert again == plan
    assert run_plan(again).world.log == run_plan(plan).world.log


def test_two_seeds_are_two_worlds() -> None:
    assert plan_of(3, faults=True) != plan_of(4, faults=True)
    assert run_plan(plan_of(3, faults=False)).world.log != run_plan(plan_of(4, faults=False)).world.log


def test_faults_only_add_faults() -> None:
    calm, rough = plan_of(5, faults=False), plan_of(5, faults=True)
    assert calm.faults == () and rough.faults
    assert calm.islands == rough.islands


def test_faults_come_in_the_order_of_their_times_and_hit_ranks_that_exist() -> None:
    for seed in range(50):
        plan = plan_of(seed, faults=True)
        assert list(plan.faults) == sorted(plan.faults, key=lambda fault: fault.at_s)
        assert all(fault.rank < plan.islands[fault.island].ranks for fault in plan.faults)
        assert all(fault.kind not in SYNCER_KINDS for fault in plan.faults)


def test_the_world_is_healed_when_its_last_fault_is_over() -> None:
    plan = plan_of(8, faults=True)
    assert plan.healed_s == max(fault.at_s + fault.seconds for fault in plan.faults)


def test_the_syncer_has_faults_in_every_other_rough_world() -> None:
    for seed in range(40):
        plan = rough_plan(seed)
        crashes = any(fault.kind in SYNCER_KINDS for fault in plan.faults)
        assert bool(plan.settings.checkpoint_path) == (seed % 2 == 1)
        assert not crashes or seed % 2 == 1
