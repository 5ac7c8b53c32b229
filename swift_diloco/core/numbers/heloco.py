"""HeLoCo: deltas corrected against the outer momentum before they are merged (arXiv 2606.00271, its update rule).

Per tensor, with g = −delta of one island, m the outer momentum, c the cosine of the two and
conf = |g| / (|g| + momentum_weight·|m|):

    c ≥ keep_above       g stays, bit for bit
    c < 0                g − β·c·|g|·m/|m|,                β = min(shrink·(−c)·conf, shrink_max)
    0 ≤ c < keep_above   |g|·ũ/|ũ|,  ũ = (1−λ)·g/|g| + λ·m/|m|,  λ = min(turn·(1−c)·conf, 1)

An update that runs against the momentum loses part of what does, one that is nearly across is turned towards it
and keeps its length. Each case is a·g + b·m with two numbers per island and tensor. Lengths and cosines are taken
in float64 in a fixed block order; the correction is elementwise float32, so the bits depend on neither arrival
order nor threads.

Knows arrays only. Without momentum (the first outer step of a fragment) nothing is corrected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.numbers import kernels
from swift_diloco.core.numbers.merge import TensorSlot
from swift_diloco.core.numbers.outer_optimizer import ranges_of, run_all


@dataclass(frozen=True)
class HelocoSettings:
    """The strengths of the correction. The rule is the paper's; these numbers are ours (its own were not available)."""

    keep_above: float = 0.5
    """Cosine from which an update counts as aligned (60 degrees)."""
    shrink: float = 1.0
    """How strongly the part that runs against the momentum is taken out."""
    shrink_max: float = 1.0
    """At 1 no more than that whole part is ever taken out."""
    turn: float = 0.5
    """How far an update that is nearly across is turned."""
    momentum_weight: float = 1.0
    """How much the momentum's length speaks against a short update's direction."""


HELOCO = HelocoSettings()


def correct(
    deltas: Sequence[NDArray[np.float32]],
    momentum: NDArray[np.float32],
    slots: Sequence[TensorSlot],
    pool: ThreadPoolExecutor | None = None,
    settings: HelocoSettings = HELOCO,
) -> None:
    """Correct each flat delta (f32, whole fragment in layout order) in place against the fragment's momentum."""
    jobs = [(number, slot) for number in range(len(deltas)) for slot in slots if slot.size]

    def one(number: int, slot: TensorSlot) -> None:
        part = slice(slot.offset, slot.offset + slot.size)
        _correct_tensor(deltas[number][part], momentum[part], settings)

    run_all(one, jobs, pool)


def _correct_tensor(delta: NDArray[np.float32], momentum: NDArray[np.float32], settings: HelocoSettings) -> None:
    length, momentum_length, cosine = _lengths_and_cosine(delta, momentum)
    if not (length > 0 and momentum_length > 0 and math.isfinite(length)):
        return  # no direction to compare, or not a number: the merge names whoever sent that
    keep, add = correction(length, momentum_length, cosine, settings)
    if (keep, add) == (1.0, 0.0):
        return
    np.multiply(delta, np.float32(keep), out=delta)
    delta -= momentum * np.float32(add)  # delta = -g, so what is added to g is taken from it


def correction(
    length: float, momentum_length: float, cosine: float, settings: HelocoSettings = HELOCO
) -> tuple[float, float]:
    """(a, b) such that the corrected g is a·g + b·m."""
    if cosine >= settings.keep_above:
        return 1.0, 0.0
    confidence = length / (length + settings.momentum_weight * momentum_length)
    if cosine < 0:
        strength = min(settings.shrink * -cosine * confidence, settings.shrink_max)
        return 1.0, -strength * cosine * length / momentum_length
    share = min(settings.turn * (1 - cosine) * confidence, 1.0)
    turned = math.sqrt((1 - share) ** 2 + share**2 + 2 * share * (1 - share) * cosine)
    return (1 - share) / turned, share * length / (momentum_length * turned)


def _lengths_and_cosine(delta: NDArray[np.float32], momentum: NDArray[np.float32]) -> tuple[float, float, float]:
    """|g|, |m| and their cosine, the last from |g/|g| + m/|m||² = 2 + 2c."""
    addresses = kernels.readonly(np.array([delta.ctypes.data, momentum.ctypes.data], dtype=np.int64))
    spans = ranges_of(0, delta.size)
    squares = np.empty((len(spans), 2))
    for row, (low, high) in zip(squares, spans, strict=True):
        kernels.squared_norms(addresses, low, high, row)
    length, momentum_length = (math.sqrt(math.fsum(column)) for column in squares.T)
    if not (length > 0 and momentum_length > 0 and math.isfinite(length)):
        return length, momentum_length, 1.0
    unit = kernels.readonly(np.array([-1.0 / length, 1.0 / momentum_length]))
    total = math.fsum(kernels.squared_norm_of_sum(addresses, unit, low, high) for low, high in spans)
    return length, momentum_length, total / 2 - 1
