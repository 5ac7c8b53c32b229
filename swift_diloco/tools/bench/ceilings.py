"""Ceilings: the fastest copy of memory, as a figure to compare with."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.numbers.outer_optimizer import ranges_of

F32 = NDArray[np.float32]


def seconds(work: Callable[[], object]) -> float:
    """How long `work` took."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def copies(source: F32, target: F32, pool: ThreadPoolExecutor) -> list[Callable[[], object]]:
    """The ways to copy that compete: np.copyto on one thread and on all, and torch's copy_ where torch is there."""

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
