"""Merge and outer step of one fragment, against the speed at which this machine copies memory.

Run `python -m tests.bench.bench_merge [--elements N] [--repeats R] [--threads T]`. It merges 4 islands under rda and
takes a Nesterov step on 64 Mi elements. Every delta has to be read twice (rda needs lengths first), values and
momentum read once and written once: 12 streams of 4 bytes per element, which is the traffic a perfect program would
make. The ceiling is the fastest copy seen in the same run, of np.copyto and torch's copy_, on one thread and on all,
counting bytes read and written.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core import kernels
from swift_diloco.core.merge import Contribution, MergePlan, MergeRule, TensorSlot, merge_and_step_fragment
from swift_diloco.core.outer import OuterSettings, OuterState, ranges_of

ISLANDS = 4
STREAMS = 2 * ISLANDS + 4
TARGET_RATIO = 0.5
TENSORS = 8
"""Equal tensors of the fragment, so that there is more than one length and direction to find."""

F32 = NDArray[np.float32]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def copies(source: F32, target: F32, pool: ThreadPoolExecutor) -> list[Callable[[], object]]:
    """The ways to copy that compete for the ceiling."""

    def part(span: tuple[int, int]) -> None:
        np.copyto(target[slice(*span)], source[slice(*span)])

    ways: list[Callable[[], object]] = [
        lambda: np.copyto(target, source),
        lambda: list(pool.map(part, ranges_of(0, source.size))),
    ]
    try:
        import torch
    except ImportError:
        return ways
    to, from_ = torch.from_numpy(target), torch.from_numpy(source)
    return [*ways, lambda: to.copy_(from_)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--elements", type=int, default=64 * 1024 * 1024)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    kernels.warm_up()
    n = options.elements // TENSORS * TENSORS
    rng = np.random.default_rng(0)
    deltas = [rng.standard_normal(n, dtype=np.float32) for _ in range(ISLANDS)]
    pushes = [Contribution(i, 1.0 + i, delta) for i, delta in enumerate(deltas)]
    state, out = (OuterState(np.zeros(n, np.float32), np.ones(n, np.float32)) for _ in range(2))
    slots = tuple(TensorSlot(i * n // TENSORS, n // TENSORS, MergeRule.RDA) for i in range(TENSORS))
    plan = MergePlan(slots, OuterSettings(lr=0.7, momentum=0.9, nesterov=True))
    merge_s, copy_s = [], []
    with ThreadPoolExecutor(options.threads) as pool:
        for _ in range(options.repeats):
            merge_s.append(seconds(lambda: merge_and_step_fragment(plan, pushes, state, out, pool)))
            copy_s += [seconds(way) for way in copies(deltas[0], out.values, pool)]
    value, ceiling = STREAMS * 4 * n / min(merge_s) / 1e9, 2 * 4 * n / min(copy_s) / 1e9
    median = STREAMS * 4 * n / float(np.median(merge_s)) / 1e9
    line = {
        "name": "merge_rda4_nesterov",
        "value": round(value, 2),
        "median": round(median, 2),
        "unit": "GB/s",
        "ceiling": round(ceiling, 2),
        "ratio": round(value / ceiling, 3),
        "target": TARGET_RATIO,
        "elements": n,
        "threads": options.threads,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
