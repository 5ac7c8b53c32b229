"""The copies that figures are compared with."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from swift_diloco.core.numbers.outer_optimizer import RANGE_ELEMENTS
from swift_diloco.tools.bench.ceilings import copies, seconds


def test_every_way_to_copy_copies_everything() -> None:
    source = np.arange(RANGE_ELEMENTS + 3, dtype=np.float32)
    with ThreadPoolExecutor(2) as pool:
        target = np.empty_like(source)
        ways = copies(source, target, pool)
        assert len(ways) >= 2
        for way in ways:
            target.fill(-1.0)
            way()
            np.testing.assert_array_equal(target, source)


def test_seconds_are_those_of_the_work() -> None:
    ended: list[float] = []
    begin = time.perf_counter()
    took = seconds(lambda: ended.append(time.perf_counter()))
    assert len(ended) == 1 and 0.0 < took <= time.perf_counter() - begin
