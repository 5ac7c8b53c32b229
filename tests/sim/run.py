"""Makes a plan from a seed and runs the world to its end. `python -m tests.sim.run SEED [faults]` replays one."""

from __future__ import annotations

import sys
from random import Random

from swift_diloco.core.settings import SyncerSettings
from swift_diloco.states import Membership, Stage
from tests.sim.checkers import check
from tests.sim.island_host import Life
from tests.sim.syncer_host import SyncerHost
from tests.sim.world import Plan, World

LIMIT_S = 4000.0
"""Virtual time by which every plan here must have ended: ten times what the slowest needs without faults."""


def plan_of(seed: int, *, faults: bool) -> Plan:
    """What a seed stands for."""
    random = Random(seed)
    islands = random.randint(1, 4)
    min_islands = random.randint(1, islands)
    fragments = random.randint(1, 5)
    settings = SyncerSettings(
        expected_islands=random.randint(min_islands, islands),
        min_islands=min_islands,
        quorum=random.choice([0, 0, islands]),
        sync_every_steps=random.randint(1, 8),
        fragments=fragments,
        pipeline=random.choice([0, 1, fragments]),
        align=random.choice(["overwrite", "blend", "carry"]),
        weights=random.choice(["tokens2_per_step", "equal"]),
        grace_cap_s=random.choice([0.0, 1.0]),
        quorum_timeout_s=random.choice([20.0, 900.0]),
        upload_grace_s=random.choice([0.0, 10.0]),
        outer_steps_max=random.choice([0, 0, 10]),
        island_lease_s=20.0,
        reconnect_grace_s=random.choice([0.0, 5.0]),
    )
    return Plan(
        seed=seed,
        settings=settings,
        islands=islands,
        steps=random.randint(10, 40),
        step_s=tuple(random.uniform(0.5, 3.0) for _ in range(islands)),
        delay_s=random.choice([0.01, 0.5]),
        transfer_s=random.choice([0.1, 4.0]),
        kills=random.randint(1, 3) if faults else 0,
        cuts=random.randint(0, 3) if faults else 0,
        silent=0.3,
        failures=0.05 if faults else 0.0,
        poison=0.05 if faults else 0.0,
    )


class Run:
    """One world with its islands, its faults and its end."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan)
        self.syncer = SyncerHost(self.world)
        self.lives: dict[int, Life] = {}
        for island in range(plan.islands):
            self.world.after(self.world.random.uniform(0.0, 5.0), lambda island=island: self._start(island, 0))  # type: ignore[misc]
        span = plan.steps * max(plan.step_s)
        for _ in range(plan.kills):
            self.world.after(self.world.random.uniform(0.0, span), self._kill)
        for _ in range(plan.cuts):
            self.world.after(self.world.random.uniform(0.0, span), self._cut)

    def _start(self, island: int, step: int) -> None:
        self.lives[island] = Life(self.world, self.syncer, island, step)

    def _victim(self) -> Life | None:
        """A living island that has not reached its end."""
        living = [life for _, life in sorted(self.lives.items()) if life.alive]
        fit = [life for life in living if life.session.stage is not Stage.FINISHED]
        return self.world.random.choice(fit) if fit else None

    def _kill(self) -> None:
        if (life := self._victim()) is not None:
            silently = self.world.random.random() < self.plan.silent
            self.world.note("silent death" if silently else "death")
            life.kill(silently=silently)
            repair_s = self.world.random.uniform(0.1, 30.0)
            self.world.after(repair_s, lambda: self._start(life.island, life.checkpoint_step))

    def _cut(self) -> None:
        if (life := self._victim()) is not None:
            self.world.note("cut")
            life.cut()

    def finish(self) -> None:
        """Run to the end and check everything; an assertion names the seed."""
        try:
            ended = self.world.run(lambda: self.syncer.exit is not None, LIMIT_S)
            check(self.syncer.tape, self.plan.settings.fragments, self.plan.settings.min_islands)
            assert ended, (
                f"no end within {LIMIT_S:g} s: waiting for {self.syncer.brain.waiting_for()}; {self._stages()}"
            )
            self._check_end()
        except AssertionError as error:
            error.add_note(f"replay: python -m tests.sim.run {self.plan.seed} {'faults' if self.plan.kills else ''}")
            raise

    def _stages(self) -> str:
        return "; ".join(
            f"island {i} {'alive' if life.alive else 'dead'} at {life.step}: {life.session.stage.value}, "
            f"waiting for {life.session.waiting_for()} {life.failure}"
            for i, life in sorted(self.lives.items())
        )

    def _check_end(self) -> None:
        """Everybody ended with the final cut, bit for bit."""
        assert self.syncer.exit is not None and self.syncer.exit.code == 0
        assert self.syncer.exit.reason == "every island has saved the final cut", self.syncer.exit
        final = [self.syncer.values[self.syncer.present[f]] for f in range(self.plan.settings.fragments)]
        for life in self.lives.values():
            if not life.finished and (not life.alive or life.session.membership is not Membership.MEMBER):
                self.world.note("missed the end")  # still under repair, or not back, when the others had ended
                continue
            assert life.finished, f"island {life.island} did not finish: {self._stages()}"
            assert life.theta == final, f"island {life.island} ends with {life.theta}, not {final}"
        assert not self.syncer.uploads, f"uploads are left: {self.syncer.uploads}"


def main() -> None:
    """Replay a seed and print what the syncer said."""
    run = Run(plan_of(int(sys.argv[1]), faults=len(sys.argv) > 2))
    try:
        run.finish()
    finally:
        print(run.plan)
        print("\n".join(run.syncer.talk))
        print(f"faults: {run.world.fired}; ended at {run.world.now:.1f} s with {run.syncer.exit}")


if __name__ == "__main__":
    main()
