"""Push and fetch of one rank over loopback, checksums on, against raw ZeroMQ of the same shape.

The rank is this process, the syncer another, as in a run. Each round pushes and then fetches the whole model, a single
fragment. The ceiling is what pyzmq alone moves in the same direction between two processes: ROUTER and DEALER, frames
of 1 MiB, zero copy on both sides, nobody looks into them. Each repeat measures both, close together, and the line
gives the medians. Where the rest of the time goes is told per MiB: what raw ZeroMQ takes, the checksum on one side
(both sides take it, at the same time), and the copy into its place, the one that the receiver makes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from swift_diloco.core.errors import DilocoError
from swift_diloco.core.numbers.digest import checksum
from swift_diloco.tools.bench.lines import Detail, Figure, line, median, short
from swift_diloco.tools.bench.processes import MIB, SyncerProcess, scratch_folder
from swift_diloco.tools.bench.rank import DialTarget, Rank, even_layout
from swift_diloco.tools.bench.raw import RawPeer

TARGET_RATIO = 0.5
WARM_ROUNDS = 2
"""Rounds before the first that counts: they touch the buffers for the first time."""

TURN_S = 0.002
ROUND_LIMIT_S = 60.0
PART_MEBIBYTES = 128

SYNCER_FLAGS = ("--fragments", "1", "--sync-every-steps", "1", "--pipeline", "1", "--grace-cap-s", "0")


@dataclass(frozen=True)
class LinkOptions:
    """What is moved, and how often."""

    mebibytes: int = 256
    repeats: int = 7


def run(options: LinkOptions) -> list[Figure]:
    """Measure."""
    size = options.mebibytes * MIB
    raw_push, raw_fetch = [], []
    logging.getLogger("swift_diloco").setLevel(logging.WARNING)
    with scratch_folder() as folder, SyncerProcess(folder, *SYNCER_FLAGS) as syncer, RawPeer() as raw:
        dial = DialTarget(syncer.address, syncer.address)
        with Rank(dial, 0, even_layout(size // 4, 1)) as rank:
            for number in range(WARM_ROUNDS + options.repeats):
                rounds_until(rank, number + 1)
                if number >= WARM_ROUNDS:
                    raw_push.append(raw.push_s(options.mebibytes))
                    raw_fetch.append(raw.fetch_s(options.mebibytes))
        notes = rank.notes
    pushes = [end - begin for begin, end in zip(notes.captured, notes.answered, strict=False)]
    gb = rank.fragment_bytes / 1e9
    parts = parts_us()
    return [
        _line("push", pushes[WARM_ROUNDS:], raw_push, gb, parts),
        _line("fetch", list(notes.fetch_s)[WARM_ROUNDS:], raw_fetch, gb, parts),
    ]


def rounds_until(rank: Rank, installs: int) -> None:
    """Train until so many rounds are installed, then rest: the next push waits for the next step."""
    deadline = time.monotonic() + ROUND_LIMIT_S
    trained = True
    while len(rank.notes.installed) < installs:
        rank.turn(TURN_S, trained=trained and rank.has_cut and len(rank.notes.captured) < installs)
        if time.monotonic() > deadline:
            raise DilocoError(f"round {installs} took more than {ROUND_LIMIT_S:g} s; is the machine overloaded?")


def parts_us() -> dict[str, float]:
    """What the product adds to the transport, per MiB that is in no cache (microseconds of processor time)."""
    source, target = (np.ones((PART_MEBIBYTES, MIB), np.uint8) for _ in range(2))
    ours: dict[str, Callable[[int], object]] = {
        "checksum_us_per_mib": lambda row: checksum(source[row]),
        "copy_us_per_mib": lambda row: np.copyto(target[row], source[row]),
    }
    times: dict[str, float] = {}
    for name, work in ours.items():
        begin = time.thread_time()
        for row in range(PART_MEBIBYTES):
            work(row)
        times[name] = short((time.thread_time() - begin) / PART_MEBIBYTES * 1e6)
    return times


def _line(name: str, ours_s: list[float], raw_s: list[float], gb: float, parts: Mapping[str, float]) -> Figure:
    figures = (gb / median(ours_s), gb / median(raw_s), TARGET_RATIO)
    mib = gb * 1e9 / MIB
    where: dict[str, Detail] = {
        "gigabytes": short(gb),
        "us_per_mib": short(median(ours_s) / mib * 1e6),
        "raw_us_per_mib": short(median(raw_s) / mib * 1e6),
        **parts,
        "each": [short(gb / seconds) for seconds in ours_s],
        "raw": [short(gb / seconds) for seconds in raw_s],
    }
    return line(f"link_{name}", "GB/s", figures, "higher", **where)
