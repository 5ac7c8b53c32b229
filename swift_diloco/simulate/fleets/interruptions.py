"""When an island is interrupted, how long that stops it, and how many of its chips are there: a Poisson process
from a seed.

Knows nothing of training. An interruption during a stop is dealt with by that stop; its chips are gone all the same.
Invariant: stops do not overlap, and the same seed and island give the same trace whoever asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from random import Random

from swift_diloco.simulate.fleets.fleet import Fleet, Mode


@dataclass(frozen=True)
class Stop:
    """An island stands still from `at_s` to `until_s`."""

    at_s: float
    until_s: float


class Trace:
    """One island's interruptions from time 0 on. To be asked with times that never go back."""

    def __init__(self, fleet: Fleet, island: int) -> None:
        self._fleet = fleet
        self._random = Random(f"trace {fleet.seed} {island}")
        self._away: list[float] = []
        """When each missing group of chips is back."""
        self._leaving: list[float] = []
        """The same for the chips that the next stop takes away."""
        self.interruptions = 0
        # What was interrupted before the simulated time is still under repair when that begins.
        past_s = fleet.repair_s if fleet.mode is Mode.ELASTIC else 0.0
        self._due = self._after(-past_s)
        self._stop = Stop(-inf, -inf)
        self.stop(0.0)
        self.interruptions = 0

    def _after(self, seconds: float) -> float:
        return seconds + self._random.expovariate(self._fleet.interruptions_per_s)

    def stop(self, now: float) -> Stop:
        """The stop that is running, or the next one."""
        while self._stop.until_s <= now:
            self._advance()
        return self._stop

    def _advance(self) -> None:
        """Take away the chips of the stop that is over, and find the next one."""
        self.interruptions += len(self._leaving)
        if self._fleet.mode is Mode.ELASTIC:
            for back in self._leaving:
                heappush(self._away, back)
        self._leaving = []
        self._stop = Stop(self._due, self._due + self._fleet.stopped_s)
        while self._due <= self._stop.until_s:
            self._leaving.append(self._due + self._fleet.repair_s)
            self._due = self._after(self._due)

    @property
    def back_s(self) -> float:
        """When the next missing chips are back."""
        return self._away[0] if self._away else inf

    def chips(self, now: float) -> int:
        """Chips that take part in a step that begins now, which is not during a stop."""
        while self._away and self._away[0] <= now:
            heappop(self._away)
        return max(0, self._fleet.chips - len(self._away) * self._fleet.group_chips)
