"""Compiled loops over blocks of elements: the only place where numbers are touched one by one.

They know addresses, ranges and coefficients, and nothing of islands, tensors, encodings' names or threads.

Invariants:
* plain IEEE arithmetic: no fast-math, so nothing is reassociated and no multiply-add is contracted; every result has
  the bits of the same expression evaluated element by element;
* a sum over elements runs over `SUM_LANES` fixed lanes inside a range that the caller chooses, so its bits depend on
  that range alone and not on vector width or on the number of threads;
* all kernels release the GIL, write only to the ranges they are given, and never keep an address.

Deltas come as a table of addresses, because the number of islands varies and a tuple of arrays would be compiled anew
for each number of them. Whoever builds the table keeps the arrays alive and has checked their type and size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from swift_diloco.core.formats.chunks import QUANT_BLOCK

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
ElementRange = tuple[int, int]
"""First element and the one after the last."""
Scalar = TypeVar("Scalar", bound=np.generic)
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

SUM_LANES = 1024
"""Elements worked on at once, and lanes of a sum. 8 KiB of float64: a block and its sums stay in
the first-level cache."""

STEP_BLOCK = 32 * SUM_LANES
"""Elements of a merge and step between two changes of the arrays that are read: short turns over eight streams leave
prefetching behind (16 Mi elements took 25.7 ms in turns of SUM_LANES, 19.3 ms so). What it writes fits the L2 cache."""


Q4_LEVELS = np.array([0.0, *(2.0 ** (level - 7) for level in range(1, 8))] * 2, np.float32)
Q4_LEVELS[8:] *= -1
"""Value of each of the 16 nibbles at scale 1."""

_MAGNITUDE = np.uint32(0x7FFF_FFFF)
INFINITY_BITS = 0x7F80_0000
"""Bits of infinity; larger ones are not numbers, smaller ones are finite."""

_INFINITY = np.uint32(INFINITY_BITS)
_ROUND_LOG = 0x0080_0000 - 0x0035_04F4
"""Added to the bits of r, it carries into the exponent exactly when the mantissa of r is above sqrt(2):
log2 to nearest."""


def _kernel(function: AnyFunction) -> AnyFunction:
    """Compile at first call, keep the machine code on disk where a folder for it can be written."""
    try:
        return cast(AnyFunction, njit(nogil=True, cache=True)(function))
    except RuntimeError:  # "no locator available": neither the package folder nor the user's cache can be written
        return cast(AnyFunction, njit(nogil=True)(function))


def _intrinsic(function: Callable[..., Any]) -> Callable[[int], Any]:
    """numba fills the first parameter itself."""
    return cast(Callable[[int], Any], intrinsic(function))


def readonly(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """A view that cannot be written: kernels are compiled per type, of which numba counts writability a part."""
    view = array.view()
    view.flags.writeable = False
    return view


@_intrinsic
def _f32_pointer(_typing: Any, _address: Any) -> Any:
    """The integer `address` as a pointer to float32: one LLVM instruction, which numba has no name for."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


@_kernel
def _combine(addresses: I64, coefficients: F64, start: int, size: int, sums: F64) -> None:
    """sums[j] = Σ_i coefficients[i] · delta_i[start + j], in float64, islands in the order of the table.

    The first four go in one loop: it saves loads and stores, and the order of the additions is the same.
    """
    islands = addresses.size
    c0 = coefficients[0]
    d0 = carray(_f32_pointer(addresses[0] + 4 * start), size)
    done = 1
    if islands >= 4:
        c1, c2, c3 = coefficients[1], coefficients[2], coefficients[3]
        d1 = carray(_f32_pointer(addresses[1] + 4 * start), size)
        d2 = carray(_f32_pointer(addresses[2] + 4 * start), size)
        d3 = carray(_f32_pointer(addresses[3] + 4 * start), size)
        for j in range(size):
            two = c0 * np.float64(d0[j]) + c1 * np.float64(d1[j])
            sums[j] = two + c2 * np.float64(d2[j]) + c3 * np.float64(d3[j])
        done = 4
    else:
        for j in range(size):
            sums[j] = c0 * np.float64(d0[j])
    for i in range(done, islands):
        c = coefficients[i]
        d = carray(_f32_pointer(addresses[i] + 4 * start), size)
        for j in range(size):
            sums[j] += c * np.float64(d[j])


@_kernel
def squared_norms(addresses: I64, start: int, stop: int, out: F64) -> None:
    """out[i] = Σ_j delta_i[j]² over start ≤ j < stop, in float64 (which a square of a float32 cannot overflow)."""
    lanes = np.empty(SUM_LANES)
    for i in range(addresses.size):
        lanes[:] = 0.0
        for low in range(start, stop, SUM_LANES):
            size = min(SUM_LANES, stop - low)
            d = carray(_f32_pointer(addresses[i] + 4 * low), size)
            for j in range(size):
                value = np.float64(d[j])
                lanes[j] += value * value
        out[i] = _lane_sum(lanes)


@_kernel
def squared_norm_of_sum(addresses: I64, coefficients: F64, start: int, stop: int) -> float:
    """Σ_j (Σ_i coefficients[i] · delta_i[j])² over start ≤ j < stop, in float64."""
    lanes = np.zeros(SUM_LANES)
    sums = np.empty(SUM_LANES)
    for low in range(start, stop, SUM_LANES):
        size = min(SUM_LANES, stop - low)
        if addresses.size == 4:
            _square_four(addresses, coefficients, low, lanes[:size])
            continue
        _combine(addresses, coefficients, low, size, sums)
        for j in range(size):
            lanes[j] += sums[j] * sums[j]
    return _lane_sum(lanes)


@_kernel
def _square_four(addresses: I64, coefficients: F64, start: int, lanes: F64) -> None:
    """lanes[j] += (Σ_i coefficients[i] · delta_i[start + j])² of four islands, a sixth faster than by way of `sums`."""
    size = lanes.size
    c0, c1, c2, c3 = coefficients[0], coefficients[1], coefficients[2], coefficients[3]
    d0 = carray(_f32_pointer(addresses[0] + 4 * start), size)
    d1 = carray(_f32_pointer(addresses[1] + 4 * start), size)
    d2 = carray(_f32_pointer(addresses[2] + 4 * start), size)
    d3 = carray(_f32_pointer(addresses[3] + 4 * start), size)
    for j in range(size):
        two = c0 * np.float64(d0[j]) + c1 * np.float64(d1[j])
        total = two + c2 * np.float64(d2[j]) + c3 * np.float64(d3[j])
        lanes[j] += total * total


@_kernel
def _lane_sum(lanes: F64) -> float:
    total = 0.0
    for j in range(lanes.size):
        total += lanes[j]
    return total


@_kernel
def largest_magnitude_bits(values: F32) -> int:
    """Bits of the largest |value|; 0x7F800000 or more when one is infinite or not a number."""
    bits = values.view(np.uint32)
    largest = np.uint32(0)
    for j in range(bits.size):
        largest = max(largest, bits[j] & _MAGNITUDE)
    return int(largest)


@_kernel
def _gradient(addresses: I64, coefficients: F64, start: int, sums: F64, out: F32) -> None:
    """out[j] = −Σ_i coefficients[i] · delta_i[start + j], rounded once; `sums` is room for SUM_LANES."""
    for at in range(0, out.size, SUM_LANES):
        size = min(SUM_LANES, out.size - at)
        _combine(addresses, coefficients, start + at, size, sums)
        target = out[at : at + size]
        for j in range(size):
            target[j] = -np.float32(sums[j])


@_kernel
def gradient_range(addresses: I64, coefficients: F64, span: ElementRange, out: F32) -> bool:
    """out[j] = −Σ_i coefficients[i] · delta_i[start + j], rounded once; False if a result is not finite."""
    start, stop = span
    sums = np.empty(SUM_LANES)
    largest = 0
    for low in range(start, stop, STEP_BLOCK):
        target = out[low - start : min(low + STEP_BLOCK, stop) - start]
        _gradient(addresses, coefficients, low, sums, target)
        largest = max(largest, largest_magnitude_bits(target))
    return largest < INFINITY_BITS


@_kernel
def momentum_step(state: tuple[F32, F32], gradient: F32, rates: F32, out: tuple[F32, F32]) -> int:
    """b ← μb + g; d = g + μb (Nesterov) or b; T ← T − lr·d, each operation rounded to float32.

    `state` and `out` are (values, momentum), `rates` = [lr, μ, 1 for Nesterov or 0]. Returns the bits of the largest
    magnitude written.
    """
    values, momentum = state
    new_values, new_momentum = out
    lr, mu = rates[0], rates[1]
    if rates[2] != 0:
        for j in range(gradient.size):
            b = mu * momentum[j] + gradient[j]
            new_momentum[j] = b
            new_values[j] = values[j] - lr * (gradient[j] + mu * b)
    else:
        for j in range(gradient.size):
            b = mu * momentum[j] + gradient[j]
            new_momentum[j] = b
            new_values[j] = values[j] - lr * b
    return max(largest_magnitude_bits(new_values), largest_magnitude_bits(new_momentum))


@_kernel
def plain_step(values: F32, gradient: F32, rates: F32, out: F32) -> int:
    """T ← T − lr·g; returns the bits of the largest magnitude written."""
    lr = rates[0]
    for j in range(gradient.size):
        out[j] = values[j] - lr * gradient[j]
    return largest_magnitude_bits(out)


@_kernel
def merge_momentum_range(
    addresses: I64, coefficients: F64, span: ElementRange, rates: F32, arrays: tuple[F32, F32, F32, F32]
) -> bool:
    """`gradient_range` and `momentum_step` in one pass; `arrays` = the span's values, momentum, new values and new
    momentum. False if a number written is not finite."""
    start, stop = span
    values, momentum, new_values, new_momentum = arrays
    sums = np.empty(SUM_LANES)
    gradient = np.empty(STEP_BLOCK, np.float32)
    largest = 0
    for low in range(start, stop, STEP_BLOCK):
        size = min(STEP_BLOCK, stop - low)
        a, b = low - start, low - start + size
        _gradient(addresses, coefficients, low, sums, gradient[:size])
        state, out = (values[a:b], momentum[a:b]), (new_values[a:b], new_momentum[a:b])
        largest = max(largest, momentum_step(state, gradient[:size], rates, out))
    return largest < INFINITY_BITS


@_kernel
def merge_plain_range(
    addresses: I64, coefficients: F64, span: ElementRange, rates: F32, arrays: tuple[F32, F32]
) -> bool:
    """`gradient_range` and `plain_step` in one pass; `arrays` = the span's values and new values."""
    start, stop = span
    values, new_values = arrays
    sums = np.empty(SUM_LANES)
    gradient = np.empty(STEP_BLOCK, np.float32)
    largest = 0
    for low in range(start, stop, STEP_BLOCK):
        size = min(STEP_BLOCK, stop - low)
        a, b = low - start, low - start + size
        _gradient(addresses, coefficients, low, sums, gradient[:size])
        largest = max(largest, plain_step(values[a:b], gradient[:size], rates, new_values[a:b]))
    return largest < INFINITY_BITS


@_kernel
def bf16_encode(values: F32, out: U16) -> None:
    """Round to nearest even; not-a-number stays so (its payload may round to infinity, hence the quiet bit)."""
    bits = values.view(np.uint32)
    for j in range(bits.size):
        b = bits[j]
        rounded = (b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        quiet = (b >> np.uint32(16)) | np.uint32(0x40)
        out[j] = np.uint16(quiet if (b & _MAGNITUDE) > _INFINITY else rounded)


@_kernel
def bf16_decode(codes: U16, out: F32) -> None:
    """The upper half of a float32 is its bf16 value."""
    bits = out.view(np.uint32)
    for j in range(codes.size):
        bits[j] = np.uint32(codes[j]) << np.uint32(16)


@_kernel
def bf16_follow(codes: U16, written: F32, out: F32) -> None:
    """Values of bf16 weights that moved by themselves since they were written: `written` where a weight is still
    bf16(written), else written + (weight - bf16(written))."""
    bits, new = written.view(np.uint32), out.view(np.uint32)
    for j in range(codes.size):
        b = bits[j]
        rounded = (b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        new[j] = np.uint32(codes[j]) << np.uint32(16)
        out[j] = written[j] if new[j] == rounded else written[j] + (out[j] - np.uint32(rounded).view(np.float32))


@_kernel
def _block_scale(values: F32) -> np.float32:
    """Largest magnitude; not-a-number when one value is not finite, so that decoding shows it."""
    largest = np.uint32(largest_magnitude_bits(values))
    if largest >= _INFINITY:
        return np.float32(np.nan)
    scale = np.float32(0.0)
    for j in range(values.size):
        scale = max(scale, abs(values[j]))
    return scale


@_kernel
def int8_encode(values: F32, scales: F32, codes: U8) -> None:
    """Per block: scale = largest magnitude / 127, code = value / scale to nearest; `codes` is [blocks, 256]."""
    for block in range(scales.size):
        part = values[block * QUANT_BLOCK : min((block + 1) * QUANT_BLOCK, values.size)]
        scale = _block_scale(part) / np.float32(127.0)
        scales[block] = scale
        row = codes[block]
        row[:] = 0
        if scale > 0:
            for j in range(part.size):
                level = np.rint(part[j] / scale)
                row[j] = np.uint8(np.int8(min(max(level, np.float32(-127.0)), np.float32(127.0))))


@_kernel
def int8_decode(scales: F32, codes: U8, out: F32) -> None:
    for block in range(scales.size):
        part = out[block * QUANT_BLOCK : min((block + 1) * QUANT_BLOCK, out.size)]
        row = codes[block]
        scale = scales[block]
        for j in range(part.size):
            part[j] = np.float32(np.int8(row[j])) * scale


@_kernel
def q4_encode(values: F32, scales: F32, codes: U8) -> None:
    """Per block: scale = largest magnitude, level = log2(|value| / scale) to nearest + 7, below 1 it is
    0; [blocks, 128]."""
    ratios = np.empty(QUANT_BLOCK, np.float32)
    bits = ratios.view(np.int32)
    nibbles = np.empty(QUANT_BLOCK, np.uint8)
    for block in range(scales.size):
        part = values[block * QUANT_BLOCK : min((block + 1) * QUANT_BLOCK, values.size)]
        scale = _block_scale(part)
        scales[block] = scale
        ratios[:] = 0.0
        nibbles[:] = 0
        if scale > 0:
            for j in range(part.size):
                ratios[j] = abs(part[j]) / scale
            for j in range(part.size):
                level = min(max(((bits[j] + _ROUND_LOG) >> 23) - 120, 0), 7)
                nibbles[j] = level | (8 if part[j] < 0 and level > 0 else 0)
        row = codes[block]
        for j in range(QUANT_BLOCK // 2):
            row[j] = nibbles[2 * j] | (nibbles[2 * j + 1] << np.uint8(4))


@_kernel
def q4_decode(scales: F32, codes: U8, out: F32) -> None:
    """Nibble to value: bit 3 is the sign, level 0 is 0, level L is scale · 2^(L−7)."""
    for block in range(scales.size):
        part = out[block * QUANT_BLOCK : min((block + 1) * QUANT_BLOCK, out.size)]
        row = codes[block]
        scale = scales[block]
        for j in range(part.size):
            part[j] = Q4_LEVELS[(row[j >> 1] >> np.uint8(4 * (j & 1))) & np.uint8(15)] * scale


def warm_up() -> None:
    """Compile every kernel, or load its machine code from disk: seconds the first time, so it is done at the start."""
    values, out, other = (np.ones(4, np.float32) for _ in range(3))
    frozen = readonly(values)
    addresses = readonly(np.array([values.ctypes.data], np.int64))
    coefficients, rates, span = readonly(np.ones(1)), readonly(np.ones(3, np.float32)), (0, 4)
    squared_norms(addresses, 0, 4, np.empty(1))
    squared_norm_of_sum(addresses, coefficients, 0, 4)
    largest_magnitude_bits(frozen)
    gradient_range(addresses, coefficients, span, out)
    momentum_step((frozen, frozen), frozen, rates, (out, other))
    plain_step(frozen, frozen, rates, out)
    merge_momentum_range(addresses, coefficients, span, rates, (frozen, frozen, out, other))
    merge_plain_range(addresses, coefficients, span, rates, (frozen, out))
    codes16, scales = np.empty(4, np.uint16), np.empty(1, np.float32)
    bf16_encode(frozen, codes16)
    bf16_decode(readonly(codes16), out)
    bf16_follow(readonly(codes16), frozen, out)
    for encode, decode, width in ((int8_encode, int8_decode, QUANT_BLOCK), (q4_encode, q4_decode, QUANT_BLOCK // 2)):
        codes = np.empty((1, width), np.uint8)
        encode(frozen, scales, codes)
        decode(readonly(scales), readonly(codes), out)
