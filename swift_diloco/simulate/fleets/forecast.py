"""What a planned fleet does: an island alone by its trace, several islands with the real brains under a virtual clock.

Goodput is the chip time spent in local steps that were completed and never taken back, as a share of the chip time of
the whole fleet. Utilisation counts all chip time spent computing, also what was lost. Measured from the moment on at
which every island trains.

The brains run for the fleet's hours, in which an island may meet few interruptions or none. What those hours show is
what the syncer costs: goodput with it as a share of what the same islands reach by the same traces without it. The
long run is that share of what they reach over thousands of interruptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from swift_diloco.core.formats.tape_lines import Commit
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.island import events
from swift_diloco.simulate.fleets.fleet import Fleet, Mode, check_fleet
from swift_diloco.simulate.fleets.interruptions import Stop, Trace
from swift_diloco.simulate.worlds.island_host import Life
from swift_diloco.simulate.worlds.island_parts import FRESH, POLL_S, IslandFacts, TrainerCheckpoint
from swift_diloco.simulate.worlds.plans import IslandPlan, Plan
from swift_diloco.simulate.worlds.run import boxes_of, layout_of
from swift_diloco.simulate.worlds.syncer_host import SyncerHost
from swift_diloco.simulate.worlds.syncer_parts import Surroundings
from swift_diloco.simulate.worlds.truth import History
from swift_diloco.simulate.worlds.world import World

HOUR_S = 3600.0

START_LIMIT_S = 10 * 86_400.0
"""Virtual time in which all islands must have begun to train: a large model over a slow link takes a day."""

INTERRUPTIONS = 20_000
"""Interruptions of the long run: goodput is then known to half a percent."""

CLOCK_S = 1e-6
"""How far two ways to add up the same time may differ: an island looks at its trace so much later than
its clock says."""

ROUNDING = 1e-9
"""Share of a step by which the end of a whole number of steps may be missed."""

GIGA = 1e9


@dataclass(frozen=True)
class Forecast:
    """What was found for a fleet."""

    goodput: float
    """In the long run."""
    utilisation: float
    interruptions: int
    hours: float
    stopped: float
    """Share of the time that islands stood still for an interruption, in the long run."""
    syncer_cost: float = 0.0
    """Share of the goodput that waiting for the syncer and for each other costs."""
    parked: float = 0.0
    """Share of the time that islands waited for the syncer or for each other."""
    merged: float = 1.0
    """Share of the local steps whose delta became part of the global values (mean over the fragments)."""
    staleness_steps: float = 0.0
    """Local steps in a merged delta, mean."""
    staleness_steps_max: int = 0
    outer_steps: int = 0
    pushed_bytes: int = 0
    fetched_bytes: int = 0
    link_share: float = 0.0
    """Mean traffic of an island in its busier direction as a share of its bandwidth."""
    link_gbit_s: float = 0.0
    """The same in Gbit/s."""


@dataclass
class Book:
    """Chip seconds of one island, and where its time went."""

    useful: float = 0.0
    worked: float = 0.0
    stopped_s: float = 0.0
    parked_s: float = 0.0
    steps: int = 0

    def step(self, chips: int, seconds: float, steps: int = 1) -> None:
        """Completed steps that took `seconds` in all."""
        self.useful += chips * seconds
        self.worked += chips * seconds
        self.steps += steps

    def lost(self, chips: int, seconds: float) -> None:
        """A step that an interruption ended."""
        self.worked += chips * seconds


def forecast(fleet: Fleet) -> Forecast:
    """Simulate a fleet."""
    check_fleet(fleet)
    return lasting(fleet) if fleet.islands == 1 else Together(fleet).run()


def on_its_own(fleet: Fleet, island: int, end_s: float) -> tuple[Book, int, float]:
    """One island by its trace alone, as if a syncer cost nothing: its book, its interruptions, and when it ended."""
    trace, book, now, unsaved = Trace(fleet, island), Book(), 0.0, 0
    while now < end_s:
        stop, chips = trace.stop(now), trace.chips(now)
        steps = int(max(0.0, min(stop.at_s, end_s) - now) / fleet.step_s + ROUNDING)
        if steps and trace.back_s < stop.at_s:
            steps = min(steps, max(1, ceil((trace.back_s - now) / fleet.step_s)))
        if steps:
            book.step(chips, steps * fleet.step_s, steps)
            unsaved = (unsaved + steps) % fleet.checkpoint_steps
            now += steps * fleet.step_s
            continue
        if stop.at_s >= end_s:
            book.step(chips, end_s - now, 0)
            break
        book.lost(chips, max(0.0, stop.at_s - now))
        if fleet.mode is Mode.PLAIN:
            book.useful -= unsaved * fleet.step_s * fleet.chips
            unsaved = 0
        book.stopped_s += stop.until_s - max(now, stop.at_s)
        now = stop.until_s
    return book, trace.interruptions, max(now, end_s)


def lasting(fleet: Fleet) -> Forecast:
    """All islands by their traces alone, until `INTERRUPTIONS` have happened: the fleet without its syncer."""
    end_s = INTERRUPTIONS / fleet.interruptions_per_s / fleet.islands
    found = [on_its_own(fleet, island, end_s) for island in range(fleet.islands)]
    time_s = sum(ended for _, _, ended in found)
    return Forecast(
        goodput=sum(book.useful for book, _, _ in found) / fleet.chips / time_s,
        utilisation=sum(book.worked for book, _, _ in found) / fleet.chips / time_s,
        interruptions=sum(count for _, count, _ in found),
        hours=end_s / HOUR_S,
        stopped=sum(book.stopped_s for book, _, _ in found) / time_s,
    )


@dataclass
class Shared:
    """What the islands of a planned fleet share besides their world."""

    fleet: Fleet
    traces: list[Trace]
    books: list[Book]
    begun_s: float | None = None
    """World time at which every island trained; traces begin then."""
    waiting: set[int] = field(default_factory=set)
    """Islands that have not trained yet."""


class PlannedLife(Life):
    """An island that trains at the pace of its fleet and is interrupted by its trace."""

    def __init__(self, facts: IslandFacts, island: int, loaded: TrainerCheckpoint, shared: Shared) -> None:
        self.shared, self.fleet = shared, shared.fleet
        self.trace, self.book = shared.traces[island], shared.books[island]
        self._up_free_s = self._down_free_s = facts.world.now
        self._chips = shared.fleet.chips
        self._step_began_s = 0.0
        self._since_checkpoint = 0.0
        super().__init__(facts, island, loaded)

    # -- Training -----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self.alive:
            return
        if self._training:
            self._train()
        self._boundary()
        if self._training and self.fleet.mode is Mode.PLAIN and self.step % self.fleet.checkpoint_steps == 0:
            self._save()
            self._since_checkpoint = 0.0
        self._go_on()

    def _go_on(self) -> None:
        """The next step, or the stop that ends it, or a look while there is nothing to train."""
        now, shared = self.world.now, self.shared
        self._training = self.session.may_train(now)
        if self._training and self.island in shared.waiting:
            shared.waiting.discard(self.island)
            if not shared.waiting:
                shared.begun_s = now
        self._step_began_s = now
        if shared.begun_s is None:
            self.world.after(self.fleet.step_s if self._training else POLL_S, self._tick)
            return
        since = now - shared.begun_s + CLOCK_S
        stop = self.trace.stop(since)
        seconds = self.fleet.step_s if self._training else POLL_S
        if since + seconds <= stop.at_s:
            self.book.parked_s += 0.0 if self._training else seconds
            self._chips = self.trace.chips(since)
            self.world.after(seconds, self._tick)
            return
        if self._training:
            self.book.lost(self.trace.chips(since), max(0.0, stop.at_s - since))
        self._training = False
        self.world.at(shared.begun_s + max(since, stop.at_s), lambda: self._stand_still(stop))

    def _stand_still(self, stop: Stop) -> None:
        assert self.shared.begun_s is not None
        self.book.stopped_s += stop.until_s - stop.at_s
        if self.fleet.mode is Mode.PLAIN:
            self.book.useful -= self._since_checkpoint
            self.kill(silently=False)
        else:
            self.world.at(self.shared.begun_s + stop.until_s, self._tick)

    def _train(self) -> None:
        self.step += 1
        for local in self.locals:
            local.value += 1.0
        seconds = self.running_s()
        self.book.step(self._chips, seconds, 1 if seconds else 0)
        self._since_checkpoint += self._chips * seconds
        self._feed(events.StepEnded(self.step, True, self._chips))

    def running_s(self) -> float:
        """How long the step that runs has run, within the measured time."""
        begun_s = self.shared.begun_s
        if begun_s is None or not (self.alive and self._training):
            return 0.0
        return self.world.now - max(begun_s, self._step_began_s)

    def close_book(self) -> None:
        """At the end of the measured time: the step that runs counts as far as it has come."""
        self.book.step(self._chips, self.running_s(), 0)

    # -- Links --------------------------------------------------------------------------------------------------------

    def push_s(self, rank: int) -> float:
        """Uploads of an island follow one another on its link."""
        self._up_free_s = self._queued(self._up_free_s, self.fleet.encoding)
        return self._up_free_s - self.world.now + self.fleet.latency_s

    def fetch_s(self, rank: int) -> float:
        """So do fetches, in the other direction."""
        self._down_free_s = self._queued(self._down_free_s, self.fleet.publish_encoding)
        return self._down_free_s - self.world.now + self.fleet.latency_s

    def _queued(self, free_s: float, encoding: str) -> float:
        seconds = 8.0 * self.fleet.fragment_bytes(encoding) / self.fleet.bandwidth
        return max(free_s, self.world.now) + seconds


class Together:
    """Several islands and their syncer."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.world = World(fleet.seed, 2 * fleet.latency_s, 1.0, checked=False)
        self.history = History()
        settings = settings_of(fleet)
        around = Surroundings(
            push_bytes=fleet.fragment_bytes(fleet.encoding),
            fetch_bytes=fleet.fragment_bytes(fleet.publish_encoding),
            merge_s=self._merge_s,
        )
        self.syncer = SyncerHost(self.world, settings, self.history, around)
        self._merged_s = 0.0
        me = IslandPlan(step_s=fleet.step_s)
        plan = Plan(fleet.seed, settings, (me,) * fleet.islands, 0, 0.0, 0.0, records=True, save_anchors=True)
        layout = layout_of(fleet.fragments)
        self.facts = IslandFacts(self.world, self.syncer, plan, layout, (boxes_of(me, 0, layout),))
        self.shared = Shared(
            fleet,
            [Trace(fleet, island) for island in range(fleet.islands)],
            [Book() for _ in range(fleet.islands)],
            waiting=set(range(fleet.islands)),
        )
        self.lives: dict[int, PlannedLife] = {}
        for island in range(fleet.islands):
            self.world.at(fleet.step_s * island / fleet.islands, lambda island=island: self._start(island, FRESH))  # type: ignore[misc]

    def _start(self, island: int, loaded: TrainerCheckpoint) -> None:
        life = self.lives[island] = PlannedLife(self.facts, island, loaded, self.shared)
        self._watch(life)

    def _watch(self, life: PlannedLife) -> None:
        """Start an island again when its stop is over."""
        if life.alive:
            self.world.after(self.fleet.step_s, lambda: self._watch(life))
            return
        begun_s = self.shared.begun_s
        assert begun_s is not None
        until_s = life.trace.stop(self.world.now - begun_s - self.fleet.step_s).until_s
        self.world.at(begun_s + until_s, lambda: self._start(life.island, life.checkpoint))

    def run(self) -> Forecast:
        """Run to the end of the hours and add up."""
        started = self.world.run(lambda: self.shared.begun_s is not None, START_LIMIT_S)
        assert started and self.shared.begun_s is not None, f"no start: {self.syncer.brain.waiting_for()}"
        begun_s, end_s = self.shared.begun_s, self.fleet.hours * HOUR_S
        pushed, fetched, tape = self.syncer.bytes_pushed, self.syncer.bytes_fetched, len(self.history.tape)
        self.world.run_to(begun_s + end_s)
        for life in self.lives.values():
            life.close_book()
        lines = [line for line in self.history.tape[tape:] if isinstance(line, Commit)]
        parts = [part for line in lines if not line.void for part in line.contributions if part.steps]
        books, time_s = self.shared.books, end_s * self.fleet.islands
        steps = sum(book.steps for book in books)
        merged = sum(part.steps for part in parts)
        pushed, fetched = self.syncer.bytes_pushed - pushed, self.syncer.bytes_fetched - fetched
        bits_s = 8.0 * max(pushed, fetched) / end_s / self.fleet.islands
        without = sum(on_its_own(self.fleet, island, end_s)[0].useful for island in range(self.fleet.islands))
        # Steps that begin at other moments meet interruptions a little differently; waiting never gains anything.
        share = min(1.0, self._useful() / without) if without else 0.0
        lasts = lasting(self.fleet)
        return Forecast(
            goodput=share * lasts.goodput,
            utilisation=share * lasts.utilisation,
            interruptions=sum(trace.interruptions for trace in self.shared.traces),
            hours=self.fleet.hours,
            stopped=lasts.stopped,
            syncer_cost=1.0 - share,
            parked=sum(book.parked_s for book in books) / time_s,
            merged=min(1.0, merged / (steps * self.fleet.fragments)) if steps else 0.0,
            staleness_steps=merged / len(parts) if parts else 0.0,
            staleness_steps_max=max((part.steps for part in parts), default=0),
            outer_steps=len(lines),
            pushed_bytes=pushed,
            fetched_bytes=fetched,
            link_share=bits_s / self.fleet.bandwidth,
            link_gbit_s=bits_s / GIGA,
        )

    def _merge_s(self) -> float:
        """Merges of the syncer follow one another: they share its memory."""
        self._merged_s = max(self._merged_s, self.world.now) + self.fleet.merge_s
        return self._merged_s - self.world.now

    def _useful(self) -> float:
        return sum(book.useful for book in self.shared.books)


def settings_of(fleet: Fleet) -> SyncerSettings:
    """The syncer of a planned fleet; what the planner does not ask for has its default."""
    return SyncerSettings(
        expected_islands=fleet.islands,
        min_islands=fleet.min_islands,
        quorum=fleet.quorum,
        sync_every_steps=fleet.sync_every_steps,
        fragments=fleet.fragments,
        delta_encoding=fleet.encoding,  # type: ignore[arg-type]
        publish_encoding=fleet.publish_encoding,  # type: ignore[arg-type]
        align=fleet.align,  # type: ignore[arg-type]
        weights="equal",
    )
