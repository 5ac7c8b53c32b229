"""Rounds and memory of the syncer while islands catch up over slow links: `python -m tests.bench.catchup`.

One island trains as fast as the syncer asks it, so that rounds follow each other without a pause. It does so alone,
with one receiver behind a slow link, alone again, and so on; then with many joiners at once. The links and sessions are
real, the slow network is a relay that lets so many bytes a second pass.

Memory is compared with what the design allows: parameters + momentum + pipeline × (members that push × a fragment +
2 fragments) + pinned fragments + 256 MiB.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec

from swift_diloco.core.errors import DilocoError, exit_with
from swift_diloco.tools.bench.cli import options_of
from swift_diloco.tools.bench.lines import Detail, Figure, line, median, say, short
from swift_diloco.tools.bench.processes import MIB, SyncerProcess, scratch_folder
from swift_diloco.tools.bench.rank import DialTarget, even_layout
from tests.bench.beating_rank import BeatingRank
from tests.bench.process_watch import ProcessWatch
from tests.bench.receivers import JOIN, LEAVE, Receivers, Seen, Task
from tests.bench.slow_addresses import SlowAddresses

PIPELINE = 2
PINNED_MAX = 8
BASE_MIB = 256.0
"""What the design grants the syncer beside values: the interpreter, its libraries, messages."""

GROWTH_MIB = 64.0
"""What slow receivers may cost beside their pins."""

PACE_RATIO = 0.9
GO_ON_RATIO = 0.05
"""With all joiners at once the processors are shared with them; what must not happen is a standstill."""

HEARTBEAT_LIMIT_S = 1.0
HEARTBEAT_S = 0.2
TURN_S = 0.002
START_LIMIT_S = 300.0
"""For the first values, or for one round: whoever waits longer waits in vain."""

SYNCER_FLAGS = (
    "--sync-every-steps", "1", "--quorum", "1", "--grace-cap-s", "0", "--upload-grace-s", "0",
    "--reconnect-grace-s", "0.2", "--pipeline", str(PIPELINE), "--pinned-fragments-max", str(PINNED_MAX),
)  # fmt: skip


@dataclass(frozen=True)
class CatchupOptions:
    """The model, the networks and how long each stretch takes."""

    mebibytes: int = 2048
    fragment_mebibytes: int = 64
    slow_mb_per_s: float = 10.0
    joiners: int = 16
    joiner_mb_per_s: float = 20.0
    seconds: float = 4.0
    pairs: int = 8
    warm_s: float = 10.0

    @property
    def fragments(self) -> int:
        return max(1, self.mebibytes // self.fragment_mebibytes)

    def task(self, addresses: list[str], first_island: int) -> Task:
        """What receivers are told."""
        return Task(tuple(addresses), first_island, self.mebibytes * MIB // 4, self.fragments, HEARTBEAT_S)


@dataclass
class Stretch:
    """What was measured in stretches of one kind."""

    rounds_per_s: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)
    """Of the syncer, per round: what a busy machine does not blur."""
    memory_mib: list[float] = field(default_factory=list)
    heartbeat_s: list[float] = field(default_factory=list)
    """The longest wait of the island that trains for the answer to a heartbeat."""
    seen: list[Seen] = field(default_factory=list)


class World:
    """The syncer, the island that trains, and the watch on the syncer's memory."""

    def __init__(self, rank: BeatingRank, watch: ProcessWatch) -> None:
        self._rank, self.watch = rank, watch

    def train(self, seconds: float) -> float:
        """Train for so long, and until a round is over; rounds per second."""
        begin, before = time.perf_counter(), len(self._rank.notes.installed)
        while time.perf_counter() < begin + seconds or len(self._rank.notes.installed) == before:
            self._rank.turn(TURN_S, trained=True)
            if time.perf_counter() > begin + seconds + START_LIMIT_S:
                raise DilocoError(f"no round was over within {START_LIMIT_S:g} s")
        return (len(self._rank.notes.installed) - before) / (time.perf_counter() - begin)

    def start(self) -> None:
        """Join and provide the initial values."""
        deadline = time.monotonic() + START_LIMIT_S
        while not self._rank.has_cut:
            self._rank.turn(TURN_S, trained=False)
            if time.monotonic() > deadline:
                raise DilocoError(f"the first values were not there within {START_LIMIT_S:g} s")

    def stretch(self, seconds: float, into: Stretch) -> None:
        """Train and note what was seen."""
        self.watch.reset()
        self._rank.control.heartbeat_s.clear()
        used, before = self.watch.processor_s(), len(self._rank.notes.installed)
        into.rounds_per_s.append(self.train(seconds))
        used = self.watch.processor_s() - used
        into.processor_s.append(used / (len(self._rank.notes.installed) - before))
        into.memory_mib.append(self.watch.reset() / MIB)
        into.heartbeat_s.append(self._rank.control.longest_wait_s)

    def stretch_with(self, receivers: Receivers, seconds: float, into: Stretch) -> None:
        """The same with receivers attached; they join while the island trains on."""
        receivers.order(JOIN)
        receivers.answer()
        self.train(seconds / 4)  # Until the queues to them are full.
        self.stretch(seconds, into)
        receivers.order(LEAVE)
        into.seen.append(msgspec.json.decode(receivers.answer(), type=Seen))


def run(options: CatchupOptions) -> list[Figure]:
    """Measure."""
    logging.getLogger("swift_diloco").setLevel(logging.WARNING)
    alone, slow, joined = Stretch(), Stretch(), Stretch()
    with ExitStack() as stack:
        syncer = stack.enter_context(
            SyncerProcess(stack.enter_context(scratch_folder()), "--fragments", str(options.fragments), *SYNCER_FLAGS)
        )
        address = syncer.address
        layout = even_layout(options.mebibytes * MIB // 4, options.fragments)
        rank = stack.enter_context(BeatingRank(DialTarget(address, address, HEARTBEAT_S), 0, layout))
        world = World(rank, stack.enter_context(ProcessWatch(syncer.process.pid)))
        one = stack.enter_context(SlowAddresses(address, options.slow_mb_per_s * 1e6, 1)).addresses
        many = stack.enter_context(SlowAddresses(address, options.joiner_mb_per_s * 1e6, options.joiners)).addresses
        slow_one = stack.enter_context(Receivers(options.task(one, 1)))
        joiners = stack.enter_context(Receivers(options.task(many, 2)))
        world.start()
        world.train(options.warm_s)
        for _ in range(options.pairs):
            world.stretch(options.seconds, alone)
            world.stretch_with(slow_one, options.seconds, slow)
        world.stretch_with(joiners, 2 * options.seconds, joined)
        return figures(options, (alone, slow, joined), world.watch.whole_peak / MIB)


def figures(options: CatchupOptions, stretches: tuple[Stretch, Stretch, Stretch], peak_mib: float) -> list[Figure]:
    """What came out, as lines."""
    alone, slow, joined = stretches
    pace, pins_mib = median(alone.rounds_per_s), float(PINNED_MAX * options.fragment_mebibytes)
    # Before the first receiver came; afterwards the buffers that pins gave back are kept for later.
    growth_mib = max(slow.memory_mib) - alone.memory_mib[0]
    allowed_mib = options.mebibytes + PIPELINE * 3 * options.fragment_mebibytes + pins_mib + BASE_MIB
    waits: dict[str, Detail] = {
        "beside_slow_s": short(max(slow.heartbeat_s)),
        "beside_joiners_s": short(max(joined.heartbeat_s)),
        "of_slow_s": short(max(seen.heartbeat_s for seen in slow.seen)),
        "of_joiners_s": short(max(seen.heartbeat_s for seen in joined.seen)),
    }
    longest = max(wait for wait in waits.values() if isinstance(wait, float))
    moved: dict[str, Detail] = {
        "alone": [short(each) for each in alone.rounds_per_s],
        "with_slow": [short(each) for each in slow.rounds_per_s],
        "syncer_s_per_round_alone": short(median(alone.processor_s)),
        "syncer_s_per_round_with_slow": short(median(slow.processor_s)),
        "slow_mb_per_s": short(median([seen.fetched_bytes[0] / 1e6 / options.seconds for seen in slow.seen])),
    }
    arrived = sum(sum(seen.fetched_bytes) for seen in joined.seen) / 1e6 / (2 * options.seconds)
    joiners: dict[str, Detail] = {"joiners": options.joiners, "joiners_mb_per_s": short(arrived)}
    return [
        line("catchup_pace_slow", "rounds/s", (median(slow.rounds_per_s), pace, PACE_RATIO), "higher", **moved),
        line("catchup_pace_joiners", "rounds/s", (median(joined.rounds_per_s), pace, GO_ON_RATIO), "higher", **joiners),
        line("catchup_growth_slow", "MiB", (max(growth_mib, 0.0), GROWTH_MIB + pins_mib, 1.0), "lower"),
        line("catchup_memory", "MiB", (peak_mib, allowed_mib, 1.0), "lower", joiners=options.joiners),
        line("catchup_heartbeat", "s", (longest, HEARTBEAT_LIMIT_S, 1.0), "lower", **waits),
    ]


def main() -> None:
    """A line of JSON per figure."""
    about = "rounds and memory of the syncer with slow receivers and joiners"
    try:
        options = options_of(CatchupOptions, "python -m tests.bench.catchup", about, sys.argv[1:])
        for figure in run(options):
            say(figure)
    except DilocoError as error:
        exit_with(error, "catchup")


if __name__ == "__main__":
    main()
