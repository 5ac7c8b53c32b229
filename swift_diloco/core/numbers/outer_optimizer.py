"""The outer optimizer: one step of SGD with momentum on the global parameters, exactly as `torch.optim.SGD` defines it.

    b ← μ·b + g          d = g + μ·b (Nesterov) or b          T ← T − lr·d

Every operation is rounded once to float32, in this order, so the result has the bits of a scalar float32 reference,
whatever the number of threads (torch may contract a multiply and an add, hence differs by at most 1 unit in the last
place). There is no clipping, no decay and no dampening. A momentum of zeros gives b = g at the first step, as torch's
first step does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.numbers import kernels

Result = TypeVar("Result")

RANGE_ELEMENTS = 1 << 20
"""Elements that one thread takes at once. Also the range of a partial sum, so changing it changes the last
bits of norms."""


@dataclass(frozen=True)
class OuterSettings:
    """Outer learning rate and momentum (no unit); plain SGD when the momentum is 0."""

    lr: float
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"the outer learning rate must be above 0; found {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"the outer momentum must be in [0, 1); found {self.momentum}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("Nesterov needs a momentum above 0; set the momentum, or nesterov to false")

    @property
    def rates(self) -> NDArray[np.float32]:
        """[lr, μ, 1 for Nesterov or 0] as the kernels take them (read only)."""
        return kernels.readonly(np.array([self.lr, self.momentum, self.nesterov], np.float32))


@dataclass(frozen=True, eq=False)
class OuterState:
    """Global values of a fragment or tensor and their momentum: float32, 1-D, contiguous, of one size.

    Without a momentum in the settings the momentum array is neither read nor written, and may be None.
    """

    values: NDArray[np.float32]
    momentum: NDArray[np.float32] | None = None

    @property
    def size(self) -> int:
        return int(self.values.size)


def outer_step(
    state: OuterState,
    gradient: NDArray[np.float32],
    settings: OuterSettings,
    out: OuterState,
    pool: ThreadPoolExecutor | None = None,
) -> bool:
    """Write the state after one step to `out`; False when a number in it is not finite.

    `out` may be `state` itself. Raises `ValueError` when sizes or types do not fit, or the momentum that the settings
    need is missing. Do not call it from a job of the same `pool`.
    """
    check_states(state, out, settings)
    check_array("gradient", gradient, state.size)
    rates = settings.rates

    def step(low: int, high: int) -> bool:
        values, g = (kernels.readonly(a[low:high]) for a in (state.values, gradient))
        if settings.momentum == 0:
            return kernels.plain_step(values, g, rates, out.values[low:high]) < kernels.INFINITY_BITS
        assert state.momentum is not None and out.momentum is not None
        momentum = kernels.readonly(state.momentum[low:high])
        target = (out.values[low:high], out.momentum[low:high])
        return kernels.momentum_step((values, momentum), g, rates, target) < kernels.INFINITY_BITS

    return all(run_all(step, ranges_of(0, state.size), pool))


def ranges_of(start: int, stop: int) -> list[tuple[int, int]]:
    """[start, stop) cut into ranges of `RANGE_ELEMENTS`, the last one shorter."""
    return [(low, min(low + RANGE_ELEMENTS, stop)) for low in range(start, stop, RANGE_ELEMENTS)]


def run_all(
    job: Callable[..., Result], arguments: Sequence[tuple[object, ...]], pool: ThreadPoolExecutor | None
) -> list[Result]:
    """Results of `job(*a)` for each a, in the order of `arguments`; on the threads of `pool` when there is one."""
    if pool is None or len(arguments) < 2:
        return [job(*a) for a in arguments]
    return list(pool.map(lambda a: job(*a), arguments))


def check_states(state: OuterState, out: OuterState, settings: OuterSettings) -> None:
    """Raise `ValueError` unless both states are of one size and have the momentum that the settings need."""
    check_array("values", state.values, state.size)
    check_array("new values", out.values, state.size)
    if settings.momentum == 0:
        return
    for name, momentum in (("momentum", state.momentum), ("new momentum", out.momentum)):
        if momentum is None:
            raise ValueError(f"{name} is missing, which outer momentum {settings.momentum} needs; start with zeros")
        check_array(name, momentum, state.size)


def check_array(name: str, array: NDArray[np.float32], size: int) -> None:
    """Raise `ValueError` unless `array` is 1-D contiguous float32 of `size` elements."""
    if array.dtype != np.dtype("<f4") or array.shape != (size,) or not array.flags.c_contiguous:
        raise ValueError(f"{name}: expected {size} contiguous float32; found {array.dtype} of shape {array.shape}")
