"""What the syncer's process of a simulated world consists of: its brain, its book of links and uploads, its arithmetic.

Plain data; `syncer_host` changes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.simulate.worlds.plans import VALUE_BYTES
from swift_diloco.simulate.worlds.truth import Learned
from syncer.brain.coordinator import Coordinator

PROGRESS_S = 1.0
"""How often a transfer tells of its progress."""

RETRY_S = 0.25
"""How often a transfer that cannot go on looks again."""

MakeBrain = Callable[[SyncerSettings, str, Callable[[], str]], Coordinator]


def make_coordinator(settings: SyncerSettings, session: str, tokens: Callable[[], str]) -> Coordinator:
    """The real brain, fresh."""
    return Coordinator(settings, session=session, tokens=tokens)


def _one_rank(island: int, fragment: int) -> tuple[int, ...]:
    return (0,)


def _unheard() -> None:
    pass


@dataclass(frozen=True)
class Surroundings:
    """What a syncer of a simulated world finds around it."""

    make: MakeBrain = make_coordinator
    owners: Callable[[int, int], tuple[int, ...]] = _one_rank
    """Ranks of an island that own a part of a fragment."""
    crashed: Callable[[], None] = _unheard
    """Tells the islands that their connections broke."""
    push_bytes: int = VALUE_BYTES
    """Size of a fragment on its way to the syncer."""
    fetch_bytes: int = VALUE_BYTES
    """Size of a fragment on its way from it."""
    merge_s: Callable[[], float] | None = None
    """How long a merge takes from now on; None: as long as any transfer."""


class Sender(Protocol):
    """What an upload needs of the island's process behind it."""

    island: int
    alive: bool
    captures: dict[str, Learned]

    def push_s(self, rank: int) -> float:
        """How long a rank's share of an upload takes."""
        ...

    def spend_damage(self) -> bool:
        """Whether this upload is one that never arrives undamaged."""
        ...


@dataclass(eq=False)
class Upload:
    """An upload that is open or complete."""

    generation: str
    fragment: int
    missing: set[int]
    """Ranks that have not delivered their share."""
    delta: Learned | None = None


@dataclass(eq=False)
class Generation:
    """What the server knows of one joining of an island."""

    control: str
    ranks: dict[int, str] = field(default_factory=dict)
    """Rank to the peer of its bulk link."""


def merged_value(present: float, contributions: list[tuple[float, float]]) -> float:
    """One outer step with learning rate 1: the present value plus the weighted mean of (weight, delta)."""
    total = math.fsum(weight for weight, _ in contributions)
    return present + math.fsum(weight / total * delta for weight, delta in contributions)
