"""What a simulated world is made of, as data: settings, islands and timed faults. A plan prints, and what was
printed replays.

Knows nothing of how a world runs. A seed stands for one plan (`plan_of`), for ever on one version of this file; a plan
kept as JSON replays whatever becomes of the generator.
"""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import Any

import msgspec

from swift_diloco.core.settings.syncer_settings import SyncerSettings

LATE_S = 60.0
"""Latest start of an island that joins a run that goes on."""

VALUE_BYTES = 16
"""Bytes of a fragment on the wire, where its size does not matter."""

FAULTS_MAX = 8
"""Most faults of one seed: more and most worlds are only ever repaired, never trained in."""


class FaultKind(Enum):
    """What can go wrong."""

    KILL = "kill"
    """An island's processes die; the syncer sees its connections close. It restarts after `seconds`."""
    VANISH = "vanish"
    """The same, but nobody is told: its hosts lost power."""
    CUT = "cut"
    """An island's control link breaks; the syncer hears of it `seconds` later than the island."""
    CUT_RANK = "cut_rank"
    """The bulk link of one rank breaks; the rank dials again after `seconds`."""
    PARTITION = "partition"
    """Nothing passes between an island and the syncer for `seconds`; no connection closes."""
    CLOG = "clog"
    """The bulk link of one rank is `CLOG_FACTOR` times slower for `seconds`."""
    STALL = "stall"
    """An island's trainer stands still for `seconds`; its heartbeats go on."""
    REPLAY = "replay"
    """A control link breaks, and what it last carried arrives once more over another connection."""
    DAMAGE = "damage"
    """The next upload of an island never arrives undamaged."""
    POISON = "poison"
    """The next delta of an island is not finite."""
    INSTALL = "install"
    """The next install of an island fails on one rank: all its ranks end, and it restarts after `seconds`."""
    DISK_FULL = "disk_full"
    """The syncer's next checkpoint cannot be written."""
    DISK_SLOW = "disk_slow"
    """The syncer's disk is slow for `seconds`."""
    CRASH = "crash"
    """The syncer dies in the middle of performing effects and is back after `seconds`, from its checkpoint."""

    STOP = "stop"
    """The syncer is told to stop (SIGTERM); `seconds` after it has ended it is started again."""


SYNCER_KINDS = (FaultKind.CRASH, FaultKind.STOP, FaultKind.DISK_FULL, FaultKind.DISK_SLOW)
ISLAND_KINDS = tuple(kind for kind in FaultKind if kind not in SYNCER_KINDS)


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault. `island` and `rank` are whom it hits; it does nothing when they are not there at that moment."""

    at_s: float
    kind: FaultKind
    island: int = 0
    rank: int = 0
    seconds: float = 0.0
    effects: int = 0
    """Effects of the next decision that the syncer still performs before it crashes."""


class IslandPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One island."""

    step_s: float
    ranks: int = 1
    slow_rank: float = 1.0
    """How many times slower than the others the last rank's link is."""
    start_s: float = 0.0


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One world."""

    seed: int
    settings: SyncerSettings
    islands: tuple[IslandPlan, ...]
    steps: int
    """Local steps of every island."""
    delay_s: float
    """Longest delay of a message."""
    transfer_s: float
    """Longest time of one rank's share of an upload or a fetch."""
    skipped: float = 0.0
    """Share of local steps without an update (overflow)."""
    records: bool = False
    """Trainer checkpoints have the sync record beside them, so that a restart resumes."""
    save_anchors: bool = False
    faults: tuple[Fault, ...] = ()

    @property
    def healed_s(self) -> float:
        """When the last fault is over."""
        return max((fault.at_s + fault.seconds for fault in self.faults), default=0.0)


def plan_json(plan: Plan) -> str:
    """A plan as one line; settings that have their default are left out."""
    fields = msgspec.to_builtins(plan)
    usual = msgspec.to_builtins(SyncerSettings())
    fields["settings"] = {name: value for name, value in fields["settings"].items() if value != usual[name]}
    return msgspec.json.encode(fields).decode()


def plan_from_json(text: str | bytes) -> Plan:
    """The plan that `plan_json` printed."""
    return msgspec.json.decode(text, type=Plan)


def plan_of(seed: int, *, faults: bool, crashes: bool = False) -> Plan:
    """What a seed stands for."""
    random = Random(f"plan {seed}")
    islands = random.randint(1, 4)
    steps = random.randint(10, 40)
    each = tuple(
        IslandPlan(
            step_s=round(random.uniform(0.5, 3.0), 3),
            ranks=random.choice([1, 1, 2, 3]),
            slow_rank=random.choice([1.0, 1.0, 3.0]),
            start_s=round(random.choice([5.0, 5.0, 5.0, LATE_S]) * random.random(), 3),
        )
        for _ in range(islands)
    )
    span_s = steps * max(island.step_s for island in each)
    chosen = _faults_of(random, each, span_s, crashes=crashes) if faults else ()
    return Plan(
        seed=seed,
        settings=_settings_of(random, islands, crashes=crashes),
        islands=each,
        steps=steps,
        delay_s=random.choice([0.01, 0.5]),
        transfer_s=random.choice([0.1, 4.0]),
        skipped=random.choice([0.0, 0.1]),
        records=random.choice([True, True, False]),
        save_anchors=random.choice([True, False]),
        faults=chosen,
    )


def calm_plan(seed: int) -> Plan:
    """A world in which nothing goes wrong."""
    return plan_of(seed, faults=False)


def rough_plan(seed: int) -> Plan:
    """A world with faults; with an odd seed the syncer and its disk have them too."""
    return plan_of(seed, faults=True, crashes=seed % 2 == 1)


def _settings_of(random: Random, islands: int, *, crashes: bool) -> SyncerSettings:
    min_islands = random.randint(1, islands)
    fragments = random.randint(1, 5)
    checkpoints: dict[str, Any] = {}
    if crashes:
        checkpoints = {
            "checkpoint_path": "disk",
            "checkpoint_on_start": True,
            "checkpoint_every": random.choice([1, 2, 8]),
            "background_checkpoint": random.choice([True, False]),
            "durable_publish": random.choice([True, False]),
        }
    return SyncerSettings(
        **checkpoints,
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
        max_base_lag=random.choice([0, 0, 2]),
        late_carry=random.choice([True, True, False]),
        late_discount=random.choice([1.0, 0.5, 0.0]),
        carried_bytes_max=random.choice([4 << 30, 2 * VALUE_BYTES]),
        island_lease_s=20.0,
        reconnect_grace_s=random.choice([0.0, 5.0]),
    )


def _faults_of(random: Random, islands: tuple[IslandPlan, ...], span_s: float, *, crashes: bool) -> tuple[Fault, ...]:
    kinds = [*ISLAND_KINDS, *2 * SYNCER_KINDS] if crashes else list(ISLAND_KINDS)
    found = []
    for _ in range(random.randint(1, FAULTS_MAX)):
        kind = random.choice(kinds)
        island = random.randrange(len(islands))
        fault = Fault(
            at_s=round(random.uniform(0.0, 1.2 * span_s), 3),
            kind=kind,
            island=0 if kind in SYNCER_KINDS else island,
            rank=0 if kind in SYNCER_KINDS else random.randrange(islands[island].ranks),
            seconds=round(random.choice([0.1, 3.0, 30.0]) * random.uniform(0.5, 1.5), 3),
            effects=random.randint(0, 4) if kind is FaultKind.CRASH else 0,
        )
        found.append(fault)
    return tuple(sorted(found, key=lambda fault: fault.at_s))
