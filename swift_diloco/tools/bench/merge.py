"""Merge and outer step of one fragment, against the speed at which this machine copies memory.

4 islands are merged under rda and a Nesterov step is taken on 64 Mi elements. Every delta has to be read twice (rda
needs lengths first), values and momentum read once and written once: 12 streams of 4 bytes per element, which is the
traffic a perfect program would make. The ceiling is the fastest way to copy in the same run, counting bytes read and
written. Each repeat measures both, close together, and as much traffic of each, so that what else the machine does
meets both alike; the line gives medians.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from swift_diloco.core.numbers import kernels
from swift_diloco.core.numbers.merge import MergePlan, MergeRule, TensorSlot, WeightedDelta, merge_and_step_fragment
from swift_diloco.core.numbers.outer_optimizer import OuterSettings, OuterState
from swift_diloco.tools.bench.ceilings import copies, seconds
from swift_diloco.tools.bench.lines import Figure, line, median, short

ISLANDS = 4
STREAMS = 2 * ISLANDS + 4
TARGET_RATIO = 0.5
TENSORS = 8
"""Equal tensors of the fragment, so that there is more than one length and direction to find."""


@dataclass(frozen=True)
class MergeOptions:
    """What is measured."""

    elements: int = 64 * 1024 * 1024
    repeats: int = 7
    threads: int = 2


def run(options: MergeOptions) -> list[Figure]:
    """Measure."""
    kernels.warm_up()
    n = options.elements // TENSORS * TENSORS
    rng = np.random.default_rng(0)
    deltas = [rng.standard_normal(n, dtype=np.float32) for _ in range(ISLANDS)]
    pushes = [WeightedDelta(i, 1.0 + i, delta) for i, delta in enumerate(deltas)]
    state, out = (OuterState(np.zeros(n, np.float32), np.ones(n, np.float32)) for _ in range(2))
    slots = tuple(TensorSlot(i * n // TENSORS, n // TENSORS, MergeRule.RDA) for i in range(TENSORS))
    plan = MergePlan(slots, OuterSettings(lr=0.7, momentum=0.9, nesterov=True))
    merge_s: list[float] = []
    with ThreadPoolExecutor(options.threads) as pool:
        ways = copies(deltas[0], out.values, pool)
        copy_s: list[list[float]] = [[] for _ in ways]
        for _ in range(options.repeats):
            merge_s.append(seconds(lambda: merge_and_step_fragment(plan, pushes, state, out, pool)))
            for way, times in zip(ways, copy_s, strict=True):
                times.append(sum(seconds(way) for _ in range(STREAMS // 2)))
    traffic = STREAMS * 4 * n / 1e9
    figures = (traffic / median(merge_s), traffic / min(median(times) for times in copy_s), TARGET_RATIO)
    best = short(traffic / min(merge_s))
    return [line("merge_rda4_nesterov", "GB/s", figures, elements=n, threads=options.threads, best=best)]
