"""The compiled loops themselves: how they are compiled, and that their arithmetic is plain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from swift_diloco.core.numbers import kernels


def test_kernels_compile_where_no_folder_for_machine_code_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def njit(*, nogil: bool, cache: bool = False) -> Callable[[Callable[..., int]], Callable[..., int]]:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(kernels, "njit", njit)
    assert kernels._kernel(lambda: 5)() == 5
    assert asked == [True, False]


def test_multiply_and_add_are_rounded_apart() -> None:
    # 1 − (1 + 2⁻¹²)² is −2⁻¹¹ − 2⁻²⁴; the product alone rounds to 1 + 2⁻¹¹, only a contracted one keeps the 2⁻²⁴.
    value = np.full(64, 1 + 2.0**-12, np.float32)
    out = np.empty(64, np.float32)
    rates = np.array([1 + 2.0**-12, 0, 0], np.float32)
    kernels.plain_step(kernels.readonly(np.ones(64, np.float32)), kernels.readonly(value), kernels.readonly(rates), out)
    assert np.all(out == np.float32(-(2.0**-11)))


@pytest.mark.parametrize("size", [1, 15, 1024, 1025, 5000])
def test_largest_magnitude_sees_every_element(size: int) -> None:
    values = np.zeros(size, np.float32)
    for place in {0, size // 2, size - 1}:
        values[place] = -np.inf
        assert kernels.largest_magnitude_bits(kernels.readonly(values)) == kernels.INFINITY_BITS
        values[place] = 0
    assert kernels.largest_magnitude_bits(kernels.readonly(values)) == 0


def test_a_range_of_several_blocks_has_the_bits_of_its_parts() -> None:
    size = 2 * kernels.STEP_BLOCK + 5
    rng = np.random.default_rng(3)
    deltas = rng.standard_normal((5, size), dtype=np.float32)
    addresses = kernels.readonly(np.array([delta.ctypes.data for delta in deltas], np.int64))
    coefficients = kernels.readonly(np.array([0.1, 0.2, 0.3, 0.15, 0.25]))
    rates = kernels.readonly(np.array([0.7, 0.9, 1.0], np.float32))
    values, momentum = (kernels.readonly(rng.standard_normal(size, dtype=np.float32)) for _ in range(2))
    results = []
    for step in (size, 999):
        new = [np.empty(size, np.float32) for _ in range(2)]
        for low in range(0, size, step):
            part = slice(low, min(low + step, size))
            arrays = (values[part], momentum[part], new[0][part], new[1][part])
            assert kernels.merge_momentum_range(addresses, coefficients, (part.start, part.stop), rates, arrays)
        results.append([each.tobytes() for each in new])
    assert results[0] == results[1]


def test_the_length_of_a_sum_of_four_has_the_bits_of_one_of_five_whose_last_counts_nothing() -> None:
    size = 3 * kernels.SUM_LANES + 5
    deltas = np.random.default_rng(4).standard_normal((5, size), dtype=np.float32)
    addresses = np.array([delta.ctypes.data for delta in deltas], np.int64)
    coefficients = np.array([0.1, 0.2, 0.3, 0.15, 0.0])
    four, five = (
        kernels.squared_norm_of_sum(kernels.readonly(addresses[:n]), kernels.readonly(coefficients[:n]), 2, size)
        for n in (4, 5)
    )
    assert four == five > 0
