"""What an island of a simulated world consists of: its model, its checkpoint, values on their way, faults that wait.

Plain data; `island_host` changes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.tensors import Layout
from swift_diloco.island.remembered import Remembered
from swift_diloco.simulate.worlds.plans import Plan
from swift_diloco.simulate.worlds.syncer_host import SyncerHost
from swift_diloco.simulate.worlds.truth import Unit
from swift_diloco.simulate.worlds.world import World

POLL_S = 0.5
HEARTBEAT_S = 5.0
SAVE_S = 2.0
REDIAL_RANK_S = 0.2
"""How soon a rank dials again when its bulk link breaks."""

CHECKPOINT_STEPS = 5
"""Local steps between the trainer's checkpoints."""

CONTROL = -1


@dataclass
class Local:
    """One fragment of the model: its value, the anchor, and what was learned since the anchor."""

    value: float
    anchor: float | None = None
    """None: this process does not know it (a fresh start, or a checkpoint without anchors)."""
    units: frozenset[Unit] = frozenset()
    at_capture: float = 0.0
    since_capture: frozenset[Unit] = frozenset()


@dataclass(frozen=True)
class TrainerCheckpoint:
    """What an island's trainer wrote to disk."""

    step: int
    locals: tuple[Local, ...] = ()
    remembered: Remembered | None = None


FRESH = TrainerCheckpoint(0)
"""No checkpoint yet."""


@dataclass
class IslandFacts:
    """What an island shares with the rest of its world."""

    world: World
    syncer: SyncerHost
    plan: Plan
    layout: Layout
    boxes: tuple[tuple[Box, ...], ...]
    """Per rank."""


@dataclass
class Armed:
    """Faults that wait for the next occasion."""

    damage: int = 0
    poison: int = 0
    install: int = 0
    stalled_until: float = 0.0


@dataclass
class Staging:
    """A value on its way to the ranks."""

    missing: set[int]
    value: float | None = None
    waiting: set[int] = field(default_factory=set)
    """Ranks whose fetch is under way."""
