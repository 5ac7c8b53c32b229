"""How a stream of float32 values becomes bytes on the wire, and back.

A stream of n elements travels as chunks of `CHUNK_ELEMENTS`, each encoded on its own, so each can be checked, decoded
and sent again alone. This module knows arrays and bytes, and nothing of islands, fragments or sockets.

Invariants:
* the size of an encoded chunk depends on its elements and its encoding alone (`encoded_bytes`), so it can be checked
  before anything is allocated;
* all numbers are little-endian; int8 and q4 blocks are padded to `QUANT_BLOCK` with zeros;
* a value that is not finite is still not finite after the round trip (in int8 and q4 its whole block is), so the
  receiver can name the island that sent it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.formats.chunks import (
    _CODE_BYTES,
    CHUNK_ELEMENTS,
    SCALE_BYTES,
    Encoding,
    chunk_elements,
    encoded_bytes,
)
from swift_diloco.core.numbers import kernels

Values: TypeAlias = NDArray[np.float32]
Payload: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]


def encode(values: Values, encoding: Encoding, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """The bytes of one chunk of float32 `values` (1-D, contiguous), written to `out` when it is given.

    F32 without `out` is a view of `values`: it must not change until the bytes have been sent. Raises `ValueError` for
    another type or shape, or when `out` has not exactly `encoded_bytes` bytes.
    """
    _check_values(values)
    size = encoded_bytes(values.size, encoding)
    if out is None:
        if encoding is Encoding.F32:
            return values.view(np.uint8)
        out = np.empty(size, np.uint8)
    elif out.dtype != np.uint8 or out.shape != (size,) or not out.flags.c_contiguous:
        raise ValueError(
            f"{values.size} elements in {encoding.value} need {size} contiguous bytes; "
            f"found {out.dtype} of shape {out.shape}"
        )
    if encoding is Encoding.F32:
        out[:] = values.view(np.uint8)
    elif encoding is Encoding.BF16:
        codes16 = np.empty(values.size, np.uint16)
        kernels.bf16_encode(kernels.readonly(values), codes16)
        out[:] = codes16.view(np.uint8)
    else:
        blocks = out.reshape(-1, SCALE_BYTES + _CODE_BYTES[encoding])
        scales = np.empty(len(blocks), np.float32)
        codes = np.empty((len(blocks), _CODE_BYTES[encoding]), np.uint8)
        quantise = kernels.int8_encode if encoding is Encoding.INT8 else kernels.q4_encode
        quantise(kernels.readonly(values), scales, codes)
        blocks[:, :SCALE_BYTES] = scales.view(np.uint8).reshape(-1, SCALE_BYTES)
        blocks[:, SCALE_BYTES:] = codes
    return out


def decode(payload: Payload, encoding: Encoding, out: Values) -> None:
    """Write the values of one encoded chunk to `out` (1-D, contiguous float32, as many elements as were encoded).

    Raises `ValueError` when the payload has not exactly the bytes of `out.size` elements. A scale that is not finite
    makes values that are not finite: ask `is_finite`.
    """
    _check_values(out)
    data = np.frombuffer(payload, np.uint8)
    size = encoded_bytes(out.size, encoding)
    if data.size != size:
        raise ValueError(f"{out.size} elements in {encoding.value} are {size} bytes; found {data.size}")
    if encoding is Encoding.F32:
        out.view(np.uint8)[:] = data
    elif encoding is Encoding.BF16:
        # A frame may lie at an odd address; a kernel wants its uint16 aligned.
        codes16 = np.require(data.view("<u2"), requirements="A")
        kernels.bf16_decode(kernels.readonly(codes16), out)
    else:
        blocks = data.reshape(-1, SCALE_BYTES + _CODE_BYTES[encoding])
        scales = np.ascontiguousarray(blocks[:, :SCALE_BYTES]).view(np.float32).reshape(-1)
        codes = np.ascontiguousarray(blocks[:, SCALE_BYTES:])
        frozen = kernels.readonly(scales), kernels.readonly(codes)
        if encoding is Encoding.INT8:
            kernels.int8_decode(*frozen, out)
        else:
            kernels.q4_decode(*frozen, out)


def is_finite(values: Values) -> bool:
    """Whether no element of the contiguous float32 array is infinite or not a number."""
    _check_values(values)
    return kernels.largest_magnitude_bits(kernels.readonly(values)) < kernels.INFINITY_BITS


class ErrorFeedback:
    """Carries what encoding lost of one stream into the next push of the same stream (kept on the island).

    `encode` adds the residual of the last settled push to the values and stages the new one. `settle(True)` keeps the
    staged residual when the push counts; `settle(False)` drops it when the push was dropped and its progress will be
    sent again.
    """

    def __init__(self, n: int, encoding: Encoding) -> None:
        """For a stream of `n` elements. Holds 8·n bytes, none for F32, which loses nothing."""
        self._encoding = encoding
        self._size = 0 if encoding is Encoding.F32 else n
        self._residual = np.zeros(self._size, np.float32)
        self._staged = np.zeros(self._size, np.float32)

    def encode(self, k: int, values: Values, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """The bytes of chunk `k` of the stream with the residual added. Raises `ValueError` on another size than
        chunk k's."""
        if self._encoding is Encoding.F32:
            return encode(values, self._encoding, out)
        expected = chunk_elements(self._size, k)
        if values.size != expected:
            raise ValueError(f"chunk {k} of {self._size} elements has {expected} elements; found {values.size}")
        part = slice(k * CHUNK_ELEMENTS, k * CHUNK_ELEMENTS + expected)
        wanted = values + self._residual[part]
        payload = encode(wanted, self._encoding, out)
        staged = self._staged[part]
        decode(payload, self._encoding, staged)
        # Infinite values make no residual; the receiver drops such a push by name.
        if is_finite(staged):
            np.subtract(wanted, staged, out=staged)
        else:
            staged[:] = 0.0
        return payload

    def settle(self, counted: bool) -> None:
        """The push is over: `counted` when it was merged or carried, else it was dropped."""
        if counted:
            self._residual, self._staged = self._staged, self._residual
        self._staged[:] = self._residual

    @property
    def residual(self) -> Values:
        """What the settled pushes have not sent yet (read only)."""
        return kernels.readonly(self._residual)


def _check_values(values: Values) -> None:
    if values.dtype != np.dtype("<f4") or values.ndim != 1 or not values.flags.c_contiguous:
        raise ValueError(f"expected contiguous 1-D float32 values; found {values.dtype} of shape {values.shape}")
