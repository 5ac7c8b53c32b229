"""What happens in one run, as data: the islands, the settings, and the faults. A seed gives always the same scenario.

Knows no processes. A fault is armed when the ones before it have struck, and strikes `delay_s` after its moment, so the
order in which they are listed is the order of the run; moments of the end come last, for nothing comes after them.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec

ISLANDS = 3

SYNCER = -1
"""The victim that is not an island."""

TARGETS = (0.95, 1.0, 1.05)
"""Where each island's training pulls the model, from 0."""

STEPS_AFTER_MIDDLE = 25
"""A fault in the middle of the run is armed no later than this many steps before the end: its moment comes for sure."""

How = Literal["kill", "term", "stop"]

EARLY = ("init", "started")
MIDDLE = ("push", "fetch", "install", "save", "record", "step")
LATE = ("finish", "final")
SYNCER_MOMENTS = ("pushed", "commit", "fetched")


class Fault(msgspec.Struct, frozen=True):
    """Something that befalls one process."""

    victim: int
    how: How
    on: str
    """The moment: of an island what its stdout says (see tests.fakes.island) or `fetch` (right after a commit); of the
    syncer a line of its tape."""
    after: int = 0
    """Not before the island's step, or the syncer's outer step, of this number."""
    delay_s: float = 0.0
    away_s: float = 0.5
    """Until it is started again, or goes on after a stop."""

    def __str__(self) -> str:
        who = "the syncer" if self.victim == SYNCER else f"island {self.victim}"
        return f"{self.how} {who} on {self.on} after {self.after}"


class Scenario(msgspec.Struct, frozen=True):
    """One run."""

    seed: int = 0
    ranks: tuple[int, ...] = (1,) * ISLANDS
    steps: int = 60
    step_s: float = 0.03
    slowness: tuple[float, ...] = (1.0,) * ISLANDS
    """A step of each island takes so many times `step_s`."""
    save_every: int = 6
    save_anchors: bool = True
    elements: int = 0
    align: str = "carry"
    min_islands: int = 1
    quorum: int = 0
    checkpoint_every: int = 4
    durable: bool = False
    lease_s: float = 3.0
    faults: tuple[Fault, ...] = ()

    @property
    def survivors_may_commit(self) -> bool:
        """Whether the others can go on when one island is gone."""
        return self.min_islands < len(self.ranks)


def draw(seed: int, *, syncer_faults: bool) -> Scenario:
    """The scenario of a seed."""
    rng = random.Random(seed)
    steps = rng.randrange(55, 75)
    scenario = Scenario(
        seed=seed,
        ranks=tuple(rng.choice((1, 1, 2)) for _ in range(ISLANDS)),
        steps=steps,
        step_s=round(rng.uniform(0.02, 0.04), 3),
        save_every=rng.randrange(4, 9),
        save_anchors=rng.random() < 0.7,
        elements=rng.choice((0, 0, 400_000)),
        align=rng.choice(("overwrite", "blend", "carry")),
        min_islands=rng.choice((1, 1, 2, 3)),
        quorum=rng.choice((0, 0, 2, 3)),
        checkpoint_every=rng.randrange(1, 7),
        durable=rng.random() < 0.3,
    )
    return msgspec.structs.replace(scenario, faults=_faults(rng, scenario, syncer_faults))


def draw_kill(seed: int) -> Scenario:
    """One kill -9 in the middle of a run, at a moment that the seed chooses: what it costs is not blurred by others."""
    rng = random.Random(seed)
    fault = Fault(
        victim=rng.randrange(ISLANDS),
        how="kill",
        on=rng.choice(MIDDLE),
        after=rng.randrange(25, 50),
        delay_s=round(rng.uniform(0.0, 0.03), 3),
        away_s=1.5,
    )
    return Scenario(seed=seed, steps=120, step_s=0.04, save_every=10, faults=(fault,))


def _faults(rng: random.Random, scenario: Scenario, syncer_faults: bool) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    if rng.random() < 0.3:
        faults.append(_of_island(rng, rng.choice(EARLY), 0))
    last = scenario.steps - STEPS_AFTER_MIDDLE
    for after in sorted(rng.randrange(3, last) for _ in range(rng.randrange(1, 3))):
        # One death of the syncer at most: while it is away the islands may come to their ends.
        alone = all(fault.victim != SYNCER for fault in faults)
        if syncer_faults and alone and rng.random() < 0.4:
            faults.append(_of_syncer(rng, rng.choice(SYNCER_MOMENTS), after // 3))
        else:
            faults.append(_of_island(rng, rng.choice(MIDDLE), after))
    if rng.random() < 0.3:
        faults.append(_of_island(rng, rng.choice(LATE), 0))
    return tuple(faults)


def _of_island(rng: random.Random, on: str, after: int) -> Fault:
    how: How = rng.choice(("kill", "kill", "term", "stop"))
    away_s = round(rng.choice((0.1, 0.8, 2.0)) * rng.uniform(0.7, 1.3), 2)
    delay_s = 0.0 if on in LATE else round(rng.uniform(0.0, 0.03), 3)
    return Fault(rng.randrange(ISLANDS), how, on, after, delay_s, away_s)


def _of_syncer(rng: random.Random, on: str, after: int) -> Fault:
    how: How = rng.choice(("kill", "kill", "term", "stop"))
    return Fault(SYNCER, how, on, after, round(rng.uniform(0.0, 0.05), 3), round(rng.uniform(0.1, 1.5), 2))
