"""Whatever arrives, in whatever order: invariants hold, a step has its quorum, and nothing raises."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import CutInstalled, Done, Heartbeat, Hello, Leave, PushOffer, Saved, ValueName
from syncer.events import (
    AdoptInit,
    Commit,
    DiscardMerge,
    DropUpload,
    Exit,
    ForgetGeneration,
    InitAdopted,
    Merge,
    MergeFinished,
    OpenUpload,
    PeerGone,
    Received,
    Send,
    StopRequested,
    UploadCompleted,
    UploadFailed,
    UploadProgressed,
)
from tests.syncer.desk import SESSION, Desk, bulk, control, initial_names

EVENTS = 1000
ISLANDS = 4


class Storm:
    """Feeds a coordinator events that are mostly plausible and often wrong, and keeps the server's books."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.min_islands = self.random.randint(1, 2)
        self.desk = Desk(
            fragments=self.random.randint(1, 3),
            min_islands=self.min_islands,
            quorum_timeout_s=50.0,
            island_lease_s=100.0,
            max_base_lag=self.random.randint(0, 1),
        )
        self.lives = dict.fromkeys(range(ISLANDS), 1)
        self.open: dict[str, bool] = {}
        """Uploads of the server: whether each is complete."""
        self.owner: dict[str, str] = {}
        self.merging: list[Merge] = []
        self.adopting = False
        self.pushes = 0
        self.exited = False

    def check(self, since: int) -> None:
        """The effects of one event agree with the books of a server."""
        for effect in self.desk.effects[since:]:
            assert not self.exited, f"{effect} after the exit"
            match effect:
                case OpenUpload(upload, generation, _, _):
                    assert upload not in self.open
                    self.open[upload], self.owner[upload] = False, generation
                case DropUpload(upload, _):
                    del self.open[upload]
                case ForgetGeneration(generation, _):
                    self.open = {u: done for u, done in self.open.items() if done or self.owner[u] != generation}
                case AdoptInit(uploads):
                    for upload in uploads:
                        assert self.open.pop(upload)
                    self.adopting = True
                case Merge():
                    assert all(self.open[part.upload] for part in effect.contributions)
                    islands = [part.island for part in effect.contributions]
                    assert islands == sorted(islands) and islands  # A carried one comes before the island's own.
                    assert len({part.upload for part in effect.contributions}) == len(islands)
                    self.merging.append(effect)
                case Commit(_, _, uploads) | DiscardMerge(_, uploads):
                    for upload in uploads:
                        assert self.open.pop(upload)
                case Send(peer, message):
                    assert peer.startswith("control") or type(message).__name__ in ("RankWelcome", "Refused")
                case Exit():
                    self.exited = True

    def act(self) -> None:
        """One event."""
        before = len(self.desk.effects)
        self.desk.now += self.random.choice([0.0, 0.1, 1.0, 10.0])
        island = self.random.randrange(ISLANDS)
        roll = self.random.random()
        if roll < 0.1:
            self.join(island)
        elif roll < 0.15:
            self.desk.take(PeerGone(self.random.choice([control, bulk])(island, self.lives[island])))
        elif roll < 0.5:
            self.finish_something()
        elif island in self.desk.generation:
            self.speak(island)
        self.check(before)

    def join(self, island: int) -> None:
        self.lives[island] += 1
        changes: dict[str, Any] = self.random.choice(
            [{}, {}, {}, {"instance": "other"}, {"layout": None}, {"ranks": 2}]
        )
        hello: Hello = self.desk.hello(island, **changes)
        self.desk.take(Received(control(island, self.lives[island]), hello))
        if island in self.desk.generation:
            rank = self.desk.rank_hello(island)
            self.desk.take(Received(bulk(island, self.lives[island]), rank))

    def finish_something(self) -> None:
        """An upload or a merge ends, or something of that kind that nobody waits for."""
        if self.adopting:
            self.adopting = False
            self.desk.take(InitAdopted(initial_names(self.desk.settings.fragments)))
            return
        if self.merging and self.random.random() < 0.5:
            merge = self.merging.pop(self.random.randrange(len(self.merging)))
            bad = (merge.contributions[0].island,) if self.random.random() < 0.2 else ()
            self.desk.take(MergeFinished(merge.t, merge.attempt, f"d{merge.t}", not bad, bad))
            return
        arriving = [upload for upload, done in self.open.items() if not done]
        upload = self.random.choice([*arriving, "nobody's"])
        roll = self.random.random()
        if roll < 0.8:
            if upload in self.open:
                self.open[upload] = True
            self.desk.take(UploadCompleted(upload, 16))
        elif roll < 0.9:
            self.desk.take(UploadProgressed(upload))
        else:
            self.open.pop(upload, None)
            self.desk.take(UploadFailed(upload, "damaged"))

    def speak(self, island: int) -> None:
        desk, roll = self.desk, self.random.random()
        fields: dict[str, Any] = {"session": SESSION, "generation": desk.generation[island]}
        step = self.random.randrange(1000)
        message: Any = Heartbeat(**fields, step=step)
        if roll < 0.6:
            message = self.offer(island)
        elif roll < 0.61:
            message = Done(**fields, step=step)
        elif roll < 0.63:
            message = self.random.choice([CutInstalled(**fields), Saved(**fields), Leave(**fields, reason="why")])
        elif roll < 0.65:
            message = Heartbeat("older", desk.generation[island], step)
        desk.take(Received(control(island, self.lives[island]), message))

    def offer(self, island: int) -> PushOffer:
        """An offer for a round that is open, or nearly so."""
        opened = [(each.t, each.attempt, each.fragment) for each in self.desk.brain.status().open]
        t, attempt, fragment = self.random.choice([*opened, (1, 1, 0)])
        self.pushes += 1
        generation = self.desk.generation[island]
        steps = self.random.choice([0, 2, 2, 2])
        offer = PushOffer(
            session=SESSION,
            generation=generation,
            push=f"{generation}.{self.pushes}",
            t=t,
            attempt=attempt,
            anchor=self.desk.value(fragment),
            steps=steps,
            tokens=10 * steps,
            capture_step=self.random.randrange(1000),
        )
        wrong: list[dict[str, Any]] = [
            {"t": t + 1},
            {"attempt": attempt + 1},
            {"anchor": ValueName(fragment, 3, "?")},
            {"steps": -1},
            {"push": "nobody's"},
        ]
        return msgspec.structs.replace(offer, **self.random.choice(wrong)) if self.random.random() < 0.1 else offer


@pytest.mark.parametrize("seed", range(12))
def test_invariants_hold_in_a_storm(seed: int) -> None:
    storm = Storm(seed)
    for _ in range(EVENTS):
        storm.act()
    for line in storm.desk.tape(tape_lines.Commit):
        assert line.void or len(line.contributions) >= storm.min_islands
    if not storm.exited:
        before = len(storm.desk.effects)
        storm.desk.take(StopRequested())
        storm.desk.take(StopRequested())
        storm.check(before)
    assert storm.exited


def test_storms_reach_commits_void_rounds_and_drops() -> None:
    seen: set[str] = set()
    for seed in range(6):
        storm = Storm(seed)
        for _ in range(EVENTS):
            storm.act()
        seen |= {"commit" for line in storm.desk.tape(tape_lines.Commit) if not line.void}
        seen |= {"void" for line in storm.desk.tape(tape_lines.Commit) if line.void}
        kinds = (tape_lines.Dropped, tape_lines.Refused, tape_lines.Left, tape_lines.Joined)
        seen |= {kind.__name__ for kind in kinds if storm.desk.tape(kind)}
    assert seen == {"commit", "void", "Dropped", "Refused", "Left", "Joined"}
