"""A small world under a virtual clock: the real Coordinator, real Sessions, links with delay, and all that fails.

One number per fragment stands for its values. The trainer adds noise to it, a transfer takes its time, a merge is
the weighted mean. Whatever is random comes from one seeded generator, so a seed replays a run exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from swift_diloco.core.layout import Box, TensorSpec, make_layout
from swift_diloco.core.messages import IslandMessage, SyncerMessage
from swift_diloco.core.settings import SyncerSettings

TENSOR_ELEMENTS = 4


@dataclass(frozen=True)
class Plan:
    """What a seed stands for."""

    seed: int
    settings: SyncerSettings
    islands: int
    steps: int
    step_s: tuple[float, ...]
    """Seconds per local step of each island."""
    delay_s: float
    """Longest delay of a message."""
    transfer_s: float
    """Longest time of an upload or a fetch."""
    kills: int = 0
    """Processes killed while the run lasts."""
    cuts: int = 0
    """Control links cut."""
    silent: float = 0.0
    """Share of kills that the syncer is not told of (a host that lost power)."""
    failures: float = 0.0
    """Share of uploads that arrive damaged for good."""
    poison: float = 0.0
    """Share of deltas that are not finite."""


@dataclass(eq=False)
class Link:
    """One connection: in order in each direction, at most once, and nothing after it is cut."""

    peer: str
    to_syncer: Callable[[str, IslandMessage], None]
    to_island: Callable[[SyncerMessage], None]
    closed: bool = False
    up_at: float = 0.0
    down_at: float = 0.0


@dataclass(eq=False)
class World:
    """The clock, the queue of what will happen, and the network."""

    plan: Plan
    now: float = 0.0
    queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    counted: int = 0
    fired: dict[str, int] = field(default_factory=dict)
    """Faults that really happened, by kind."""

    def __post_init__(self) -> None:
        self.random = Random(self.plan.seed)
        fragments = self.plan.settings.fragments
        self.layout = make_layout(TensorSpec(f"w.{i}", (TENSOR_ELEMENTS,), "avg") for i in range(fragments))
        self.boxes = tuple(Box(i, (0,), (TENSOR_ELEMENTS,)) for i in range(fragments))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self.counted += 1
        heappush(self.queue, (self.now + seconds, self.counted, action))

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Let things happen until a condition holds; whether it came to hold within the limit."""
        while self.queue and not until():
            at, _, action = heappop(self.queue)
            if at > limit_s:
                return False
            self.now = at
            action()
        return until()

    def token(self) -> str:
        """A text that never repeats."""
        return f"{self.random.getrandbits(48):012x}"

    def delay(self) -> float:
        return self.random.uniform(0.0, self.plan.delay_s)

    def transfer(self) -> float:
        return self.random.uniform(0.01, self.plan.transfer_s)

    def note(self, fault: str) -> None:
        """A fault happened."""
        self.fired[fault] = self.fired.get(fault, 0) + 1

    def send_up(self, link: Link, message: IslandMessage) -> None:
        """Island to syncer."""
        link.up_at = max(link.up_at, self.now + self.delay())
        self.after(link.up_at - self.now, lambda: None if link.closed else link.to_syncer(link.peer, message))

    def send_down(self, link: Link, message: SyncerMessage) -> None:
        """Syncer to island."""
        link.down_at = max(link.down_at, self.now + self.delay())
        self.after(link.down_at - self.now, lambda: None if link.closed else link.to_island(message))


def merged_value(present: float, contributions: list[tuple[float, float]]) -> float:
    """One outer step with learning rate 1: the present value plus the weighted mean of (weight, delta)."""
    total = math.fsum(weight for weight, _ in contributions)
    return present + math.fsum(weight / total * delta for weight, delta in contributions)
