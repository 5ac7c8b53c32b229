"""A world that hypothesis breaks as it goes: whatever it does, safety holds at every moment, and healed it ends.

Unlike a seed, a failing course of events is made as short as it can be before it is shown.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swift_diloco.simulate.worlds.checkers import CHECKERS, Rules, handles_balance
from swift_diloco.simulate.worlds.plans import Fault, FaultKind, plan_of
from swift_diloco.simulate.worlds.run import Run

ALWAYS = tuple(checker for checker in CHECKERS if checker is not handles_balance)
"""What holds while a world still runs; handles balance when it has ended."""


class BrokenWorld(RuleBasedStateMachine):
    """Rules are faults and the passing of time."""

    run: Run

    @initialize(seed=st.integers(0, 10_000), crashes=st.booleans())
    def begin(self, seed: int, crashes: bool) -> None:
        self.run = Run(plan_of(seed, faults=False, crashes=crashes))

    @rule(seconds=st.sampled_from([0.3, 2.0, 7.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.run.world.run(lambda: self.run.syncer.exit is not None, self.run.world.now + seconds)

    @rule(
        kind=st.sampled_from(FaultKind),
        island=st.integers(0, 3),
        rank=st.integers(0, 2),
        seconds=st.sampled_from([0.1, 4.0, 30.0]),
        effects=st.integers(0, 4),
    )
    def strike(self, kind: FaultKind, island: int, rank: int, seconds: float, effects: int) -> None:
        plan, now = self.run.plan, self.run.world.now
        if kind is FaultKind.CRASH and not plan.settings.checkpoint_path:
            kind = FaultKind.KILL
        island %= len(plan.islands)
        fault = Fault(now, kind, island, rank % plan.islands[island].ranks, seconds, effects)
        self.run.strike(fault)

    @invariant()
    def safe(self) -> None:
        if not hasattr(self, "run"):
            return
        rules = Rules(self.run.plan.settings.fragments, self.run.plan.settings.min_islands)
        for checker in ALWAYS:
            checker(self.run.history, rules)

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.finish()


@pytest.mark.net
def test_a_world_stays_safe_and_ends_whatever_breaks_it() -> None:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    course = settings(max_examples=25, stateful_step_count=15, deadline=None, derandomize=True, database=None)
    BrokenWorld.TestCase.settings = settings(course, suppress_health_check=quiet)
    BrokenWorld.TestCase().runTest()
