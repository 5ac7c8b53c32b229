"""The virtual clock and the network of a simulated world: what happens next, and when a message arrives.

Knows neither syncer nor islands. A connection delivers in order and at most once in each direction and nothing after
it is closed; different connections overtake each other. Whatever is random comes from one generator that is seeded, so
a plan replays exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from swift_diloco.core.formats.messages import IslandMessage, SyncerMessage

CLOG_FACTOR = 20.0
"""How much slower a clogged link is: a transfer of a second then outlasts every patience but the longest."""


@dataclass(eq=False)
class Link:
    """One connection of one rank; rank −1 is the island's control link."""

    peer: str
    island: int
    rank: int
    to_syncer: Callable[[str, IslandMessage], None]
    to_island: Callable[[SyncerMessage], None]
    closed: bool = False
    up_at: float = 0.0
    down_at: float = 0.0
    sent: list[IslandMessage] = field(default_factory=list)
    """What it carried to the syncer last."""


SENT_KEPT = 4
"""Messages of a link that a reconnect may carry again."""


@dataclass(eq=False)
class World:
    """The clock, the queue of what will happen, and the network."""

    seed: int
    delay_s: float
    transfer_s: float
    checked: bool = True
    """Brains check their invariants after every event."""
    now: float = 0.0
    fired: dict[str, int] = field(default_factory=dict)
    """Faults that really happened, by kind."""
    log: list[str] = field(default_factory=list)
    events: int = 0

    def __post_init__(self) -> None:
        self.random = Random(f"world {self.seed}")
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._counted = 0
        self._parted_until: dict[int, float] = {}
        self._clogged_until: dict[tuple[int, int], float] = {}

    # -- Time ---------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self.at(self.now + seconds, action)

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        self._counted += 1
        heappush(self._queue, (max(when, self.now), self._counted, action))

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Let things happen until a condition holds; whether it came to hold within the limit."""
        while self._queue and not until():
            if self._queue[0][0] > limit_s:
                return False
            self.now, _, action = heappop(self._queue)
            self.events += 1
            action()
        return until()

    def run_to(self, when: float) -> None:
        """Let everything happen until a time, and be there."""
        self.run(lambda: False, when)
        self.now = when

    # -- Chance -------------------------------------------------------------------------------------------------------

    def token(self) -> str:
        """A text that never repeats."""
        return f"{self.random.getrandbits(48):012x}"

    def delay(self) -> float:
        """How long a message takes."""
        return self.random.uniform(0.0, self.delay_s)

    def transfer(self) -> float:
        """How long a transfer or a computation takes."""
        return self.random.uniform(0.01, self.transfer_s)

    # -- Faults -------------------------------------------------------------------------------------------------------

    def note(self, fault: str) -> None:
        """A fault happened."""
        self.fired[fault] = self.fired.get(fault, 0) + 1
        self.say(f"FAULT {fault}")

    def say(self, text: str) -> None:
        """One line of the story of this world."""
        self.log.append(f"{self.now:9.2f} {text}")

    def part(self, island: int, seconds: float) -> None:
        """Nothing passes between an island and the syncer for a while."""
        self._parted_until[island] = max(self._parted_until.get(island, 0.0), self.now + seconds)

    def clog(self, island: int, rank: int, seconds: float) -> None:
        """A rank's bulk link is slow for a while."""
        self._clogged_until[island, rank] = self.now + seconds

    def slowness(self, island: int, rank: int) -> float:
        """How many times longer a rank's transfer takes now."""
        return CLOG_FACTOR if self._clogged_until.get((island, rank), 0.0) > self.now else 1.0

    def passes(self, island: int) -> bool:
        """Whether anything passes between an island and the syncer."""
        return self._parted_until.get(island, 0.0) <= self.now

    # -- Messages -----------------------------------------------------------------------------------------------------

    def send_up(self, link: Link, message: IslandMessage) -> None:
        """Island to syncer."""
        link.sent = [*link.sent[1 - SENT_KEPT :], message]
        link.up_at = max(link.up_at, self._arrival(link))
        self.at(link.up_at, lambda: None if link.closed else link.to_syncer(link.peer, message))

    def send_down(self, link: Link, message: SyncerMessage) -> None:
        """Syncer to island."""
        link.down_at = max(link.down_at, self._arrival(link))
        self.at(link.down_at, lambda: None if link.closed else link.to_island(message))

    def _arrival(self, link: Link) -> float:
        """TCP sends again what a partition swallowed."""
        return max(self.now, self._parted_until.get(link.island, 0.0)) + self.delay()
