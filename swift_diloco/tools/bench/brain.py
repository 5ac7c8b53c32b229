"""Events per second of the syncer's brain. The brain is the syncer's, so its own process measures it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import msgspec

from swift_diloco.core.errors import InternalError
from swift_diloco.tools.bench.lines import Figure, line

EVENTS_PER_S = 20_000.0
"""What 1,000 islands that answer, progress, beat and complete need every few seconds, on a tenth of a core."""

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class BrainOptions:
    """The size of the run."""

    islands: int = 1000
    fragments: int = 96
    rounds: int = 20


class BrainMeasured(msgspec.Struct, frozen=True):
    """What the process printed."""

    events: int
    events_per_s: float
    slowest_event_ms: float


def run(options: BrainOptions) -> list[Figure]:
    """Measure in a process of its own."""
    words = [str(each) for each in (options.islands, options.fragments, options.rounds)]
    command = [sys.executable, "-m", "syncer.bench", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise InternalError(f"`{' '.join(command)}` ended with code {done.returncode}: {done.stderr.strip()}")
    measured = msgspec.json.decode(done.stdout, type=BrainMeasured)
    return [
        line(
            "brain_events",
            "events/s",
            (measured.events_per_s, EVENTS_PER_S, 1.0),
            islands=options.islands,
            fragments=options.fragments,
            events=measured.events,
            slowest_event_ms=measured.slowest_event_ms,
        )
    ]
