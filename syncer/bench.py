"""Events per second of processor time of the coordinator, with every event of a fleet of well-behaved islands.

`python -m syncer.bench [ISLANDS FRAGMENTS ROUNDS]` prints one JSON object; `swift-diloco bench brain` runs it. No
sockets and no values: the arithmetic and the wire have benches of their own.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import count
from time import process_time

from swift_diloco.core.formats.messages import Heartbeat, Hello, PushOffer, RankHello, ValueName, Welcome
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.tensors import Layout, TensorSpec, make_layout
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from syncer.brain.coordinator import Coordinator
from syncer.events import (
    Commit,
    Event,
    InitAdopted,
    Merge,
    MergeFinished,
    Received,
    Send,
    UploadCompleted,
    UploadProgressed,
)

SESSION = "bench"
WIDTH = 4
"""Elements of each fragment's tensor."""

H = 24
LONG_S = 1e6
"""A lease that no island outlives here."""

CHUNK_BYTES = WIDTH * 4


@dataclass(frozen=True)
class BenchFleet:
    """A run that has begun, with every island in it."""

    brain: Coordinator
    generations: dict[int, str]
    values: dict[int, ValueName]


def settings_of(islands: int, fragments: int) -> SyncerSettings:
    """Everybody answers every round."""
    return SyncerSettings(
        fragments=fragments,
        expected_islands=islands,
        quorum=islands,
        sync_every_steps=H,
        grace_cap_s=0.0,
        island_lease_s=LONG_S,
    )


def fleet(islands: int, fragments: int) -> BenchFleet:
    """Join all islands and begin."""
    layout = make_layout(TensorSpec(f"w.{i}", (WIDTH,), "avg") for i in range(fragments))
    tokens = count(1)
    brain = Coordinator(settings_of(islands, fragments), session=SESSION, tokens=lambda: f"k{next(tokens)}")
    generations = {island: _join(brain, layout, island) for island in range(islands)}
    for fragment in range(fragments):
        brain.handle(UploadCompleted(f"{generations[0]}.init-1-{fragment}", CHUNK_BYTES), now=0.0)
    values = tuple(ValueName(fragment, 0, f"digest-{fragment}") for fragment in range(fragments))
    brain.handle(InitAdopted(values), now=0.0)
    return BenchFleet(brain, generations, {name.fragment: name for name in values})


def _join(brain: Coordinator, layout: Layout, island: int) -> str:
    hello = Hello(island, f"nonce-{island}", layout.fingerprint, f"host-{island}", 1, f"job-{island}", 0, 1, layout)
    welcome = next(
        effect.message
        for effect in brain.handle(Received(f"control-{island}", hello), now=0.0)
        if isinstance(effect, Send) and isinstance(effect.message, Welcome)
    )
    boxes = tuple(Box(tensor, (0,), (WIDTH,)) for tensor in range(len(layout.tensors)))
    hello_of_rank = RankHello(SESSION, welcome.generation, welcome.token, 0, boxes)
    brain.handle(Received(f"bulk-{island}", hello_of_rank), now=0.0)
    return welcome.generation


class Meter:
    """Feeds events to a brain and counts them."""

    def __init__(self, fleet: BenchFleet) -> None:
        self.fleet = fleet
        self.events = 0
        self.slowest_s = 0.0
        self.commits = 0

    def take(self, event: Event) -> None:
        """One event, and what follows from a merge that it starts."""
        started = process_time()
        effects = self.fleet.brain.handle(event, now=self.events / 1000)
        self.slowest_s = max(self.slowest_s, process_time() - started)
        self.events += 1
        for effect in effects:
            if isinstance(effect, Merge):
                self.take(MergeFinished(effect.t, effect.attempt, f"d{effect.t}"))
            elif isinstance(effect, Commit):
                self.commits += 1
                self.fleet.values[effect.name.fragment] = effect.name

    def round(self, t: int) -> None:
        """Of each island an offer, a progress, a heartbeat and a completion; then the merge and the commit."""
        anchor = self.fleet.values[(t - 1) % len(self.fleet.values)]
        for island, generation in self.fleet.generations.items():
            push = f"{generation}.{t}"
            offer = PushOffer(SESSION, generation, push, t, 1, anchor, H, 100, H * t)
            self.take(Received(f"control-{island}", offer))
            self.take(UploadProgressed(push))
            self.take(Received(f"control-{island}", Heartbeat(SESSION, generation, H * t + 1)))
            self.take(UploadCompleted(push, CHUNK_BYTES))


def measure(islands: int, fragments: int, rounds: int) -> dict[str, float]:
    """The figures of a number of rounds."""
    meter = Meter(fleet(islands, fragments))
    begun = process_time()
    for t in range(1, rounds + 1):
        meter.round(t)
    seconds = process_time() - begun
    assert meter.commits == rounds, f"{meter.commits} commits in {rounds} rounds"
    rate, slowest_ms = round(meter.events / seconds), round(meter.slowest_s * 1e3, 2)
    return {"events": meter.events, "events_per_s": rate, "slowest_event_ms": slowest_ms}


if __name__ == "__main__":
    print(json.dumps(measure(*(int(word) for word in sys.argv[1:4] or ("1000", "96", "20")))))
