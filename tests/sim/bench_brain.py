"""Events per second of processor time of the coordinator: 1,000 islands and 96 fragments.

`python -m tests.sim.bench_brain` prints one JSON line.
"""

from __future__ import annotations

import json
from time import process_time

from swift_diloco.core.messages import Heartbeat, PushOffer, RankHello, Welcome
from syncer.coordinator import Coordinator
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
from tests.syncer.desk import SESSION, Desk, bulk, control, initial_names

ISLANDS = 1000
FRAGMENTS = 96
ROUNDS = 20


def fleet() -> tuple[Desk, dict[int, str]]:
    """A run that has begun with every island in it."""
    desk = Desk(fragments=FRAGMENTS, expected_islands=ISLANDS, sync_every_steps=24, quorum=ISLANDS, island_lease_s=1e6)
    brain, generations = desk.brain, dict[int, str]()
    for island in range(ISLANDS):
        for effect in brain.handle(Received(control(island), desk.hello(island)), now=0.0):
            if isinstance(effect, Send) and isinstance(effect.message, Welcome):
                welcome = effect.message
        generations[island] = welcome.generation
        hello = RankHello(SESSION, welcome.generation, welcome.token, 0, desk.boxes())
        brain.handle(Received(bulk(island), hello), now=0.0)
    for fragment in range(FRAGMENTS):
        brain.handle(UploadCompleted(f"{generations[0]}.init-1-{fragment}", 16), now=0.0)
    brain.handle(InitAdopted(initial_names(FRAGMENTS)), now=0.0)
    return desk, generations


def measure(brain: Coordinator, generations: dict[int, str]) -> dict[str, float]:
    """Every round: of each island an offer, a progress, a completion and a heartbeat; then the merge."""
    events, slowest, begun = 0, 0.0, process_time()
    names = {name.fragment: name for name in initial_names(FRAGMENTS)}

    def take(event: Event) -> None:
        nonlocal events, slowest
        started = process_time()
        effects = brain.handle(event, now=events / 1000)
        slowest = max(slowest, process_time() - started)
        events += 1
        for effect in effects:
            if isinstance(effect, Merge):
                take(MergeFinished(effect.t, effect.attempt, f"d{effect.t}"))
            elif isinstance(effect, Commit):
                names[effect.name.fragment] = effect.name

    for t in range(1, ROUNDS + 1):
        anchor = names[(t - 1) % FRAGMENTS]
        for island, generation in generations.items():
            push = f"{generation}.{t}"
            take(Received(control(island), PushOffer(SESSION, generation, push, t, 1, anchor, 24, 100, 24 * t)))
            take(UploadProgressed(push))
            take(Received(control(island), Heartbeat(SESSION, generation, 24 * t + 1)))
            take(UploadCompleted(push, 16))
    seconds = process_time() - begun
    return {"events": events, "events_per_s": round(events / seconds), "slowest_event_ms": round(slowest * 1e3, 2)}


if __name__ == "__main__":
    desk, generations = fleet()
    print(json.dumps({"islands": ISLANDS, "fragments": FRAGMENTS} | measure(desk.brain, generations)))
