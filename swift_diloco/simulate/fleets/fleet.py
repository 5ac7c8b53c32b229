"""A fleet as a planner sees it: islands of chips that are interrupted now and then, and the links to their syncer.

Plain data and what follows from it by arithmetic. Times are seconds; a *chip* is one accelerator.
"""

from __future__ import annotations

from enum import Enum
from math import expm1

import msgspec

from swift_diloco.core.errors import UserError

YEAR_S = 365.25 * 86_400.0

ISLANDS_MAX = 64
"""Most islands of a planned fleet: the real brains run for each of them, a second per simulated island hour."""

ENCODED_BYTES = {"f32": 4.0, "bf16": 2.0, "int8": 1.016, "q4": 0.516}
"""Bytes per parameter on the wire: q4 has 132 bytes per block of 256, int8 a scale per block as well."""


class Mode(Enum):
    """What an interruption does to an island."""

    ELASTIC = "elastic"
    """A short stop, then the island goes on with the chips that are left; what was learned is kept."""
    PLAIN = "plain"
    """The whole island stops until it is restarted, from its last checkpoint."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What is planned. Every rate and time is a mean."""

    islands: int = 4
    chips: int = 256
    """Chips per island."""
    mode: Mode = Mode.ELASTIC
    step_s: float = 5.0
    """One local step of an island."""
    interruption_s: float = YEAR_S
    """Mean time between interruptions of one chip."""
    group_chips: int = 8
    """Chips that one interruption takes away together: a host or a slice."""
    repair_s: float = 3600.0
    """Until those chips are back (elastic)."""
    stop_s: float = 60.0
    """How long an interruption stops the whole island (elastic)."""
    restart_s: float = 600.0
    """How long an interruption stops the whole island (plain): replacing, restarting, loading."""
    checkpoint_steps: int = 100
    """Local steps between trainer checkpoints (plain): what lies between is trained again."""
    parameters: float = 8e9
    fragments: int = 24
    sync_every_steps: int = 24
    encoding: str = "f32"
    """Of deltas."""
    publish_encoding: str = "f32"
    bandwidth: float = 10e9
    """Of an island's link to the syncer, each direction (bits/s)."""
    latency_s: float = 0.05
    syncer_bytes_s: float = 10e9
    """Memory traffic of the syncer while it merges: half of what a two-core machine copies."""
    quorum: int = 0
    min_islands: int = 1
    align: str = "carry"
    hours: float = 1.0
    """Simulated time."""
    seed: int = 0

    @property
    def chips_in_all(self) -> int:
        return self.islands * self.chips

    @property
    def stopped_s(self) -> float:
        """How long an interruption stops an island."""
        return self.stop_s if self.mode is Mode.ELASTIC else self.restart_s

    @property
    def interruptions_per_s(self) -> float:
        """Of one island."""
        return self.chips / self.interruption_s

    def fragment_bytes(self, encoding: str) -> int:
        """One fragment on the wire."""
        return max(1, round(self.parameters / self.fragments * ENCODED_BYTES[encoding]))

    @property
    def merge_s(self) -> float:
        """One outer step of the syncer: each delta is read twice, values and momentum are read and written."""
        streams = 2 * self.islands + 4
        return streams * 4.0 * self.parameters / self.fragments / self.syncer_bytes_s


LIMITS: dict[str, tuple[float, float]] = {
    "islands": (1, ISLANDS_MAX),
    "chips": (1, 1e8),
    "step_s": (1e-3, 1e5),
    "interruption_s": (1.0, 1e15),
    "group_chips": (1, 1e8),
    "repair_s": (0.0, 1e9),
    "stop_s": (0.0, 1e7),
    "restart_s": (0.0, 1e7),
    "checkpoint_steps": (1, 1e9),
    "parameters": (1.0, 1e15),
    "fragments": (1, 4096),
    "sync_every_steps": (1, 1e6),
    "bandwidth": (1e3, 1e15),
    "latency_s": (0.0, 60.0),
    "syncer_bytes_s": (1e6, 1e16),
    "quorum": (0, ISLANDS_MAX),
    "min_islands": (1, ISLANDS_MAX),
    "hours": (1e-3, 1e6),
}
"""Least and largest value of each number of a fleet."""


def check_fleet(fleet: Fleet) -> None:
    """Refuse what cannot be simulated; the text names the option."""
    for name, (low, high) in LIMITS.items():
        value = getattr(fleet, name)
        if not low <= value <= high:
            option = "--" + name.removesuffix("_s").replace("_", "-")
            raise UserError(f"{option} {value:g}: expected {low:g} to {high:g}")
    for name in ("min_islands", "quorum"):
        if getattr(fleet, name) > fleet.islands:
            raise UserError(f"--{name.replace('_', '-')} {getattr(fleet, name)} is above --islands {fleet.islands}")
    if fleet.group_chips > fleet.chips:
        raise UserError(f"--group-chips {fleet.group_chips} is above --chips {fleet.chips} (of one island)")
    for encoding in (fleet.encoding, fleet.publish_encoding):
        if encoding not in ENCODED_BYTES:
            raise UserError(f"encoding {encoding!r}: expected one of {', '.join(ENCODED_BYTES)}")


def closed_form(fleet: Fleet) -> float:
    """Goodput of one island whose interruptions are a Poisson process, by renewal theory; the syncer costs nothing.

    A cycle is a time without interruption, 1/Λ in the mean, and a stop; interruptions during a stop are dealt with by
    it. Of the time without interruption, whole units count: steps (elastic) or steps between checkpoints (plain). Chips
    under repair are missing besides (elastic).
    """
    rate = fleet.interruptions_per_s
    unit_s = fleet.step_s * (1 if fleet.mode is Mode.ELASTIC else fleet.checkpoint_steps)
    useful_s = unit_s / expm1(rate * unit_s) if rate * unit_s < 700.0 else 0.0
    there = 1.0
    if fleet.mode is Mode.ELASTIC:
        there = max(0.0, 1.0 - fleet.repair_s * fleet.group_chips / fleet.interruption_s)
    return there * useful_s / (1.0 / rate + fleet.stopped_s)
