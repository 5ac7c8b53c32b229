"""How a fragment's values are cut into chunks and how many bytes they take in each encoding.

Plain arithmetic on sizes: whoever asks how large something is loads no compiler.
"""

from __future__ import annotations

from enum import Enum

QUANT_BLOCK = 256
"""Elements that share one scale in the int8 and q4 encodings."""

CHUNK_ELEMENTS = 262_144
"""Elements of one chunk: 1 MiB of float32, the message size that was measured fastest; a multiple of QUANT_BLOCK."""

SCALE_BYTES = 4
"""One float32 scale stands before the codes of each int8 or q4 block."""


class Encoding(Enum):
    """How float32 values travel; the value of a member is its name in settings and messages."""

    F32 = "f32"
    """As they are, 4 bytes each."""
    BF16 = "bf16"
    """Upper half of the float32, rounded to nearest even: 2 bytes each, 8 bits of precision."""
    INT8 = "int8"
    """Blocks of 256: scale = largest magnitude / 127, then 256 signed bytes: 1.016 bytes each."""
    Q4 = "q4"
    """Blocks of 256: scale = largest magnitude, then 256 nibbles of sign and power of two: 0.516 bytes each."""


_CODE_BYTES = {Encoding.INT8: QUANT_BLOCK, Encoding.Q4: QUANT_BLOCK // 2}
"""Bytes of codes per block of the block-scaled encodings."""


def chunk_count(n: int) -> int:
    """Chunks of a stream of `n` elements; none for an empty stream."""
    return -(-n // CHUNK_ELEMENTS)


def chunk_elements(n: int, k: int) -> int:
    """Elements of chunk `k` of a stream of `n` elements. Raises `ValueError` when there is no such chunk."""
    if not 0 <= k < chunk_count(n):
        raise ValueError(f"a stream of {n} elements has {chunk_count(n)} chunks; found chunk number {k}")
    return min(CHUNK_ELEMENTS, n - k * CHUNK_ELEMENTS)


def encoded_bytes(n_elements: int, encoding: Encoding) -> int:
    """Bytes of one encoded chunk of `n_elements`."""
    if n_elements < 0:
        raise ValueError(f"a chunk has 0 or more elements; found {n_elements}")
    if encoding is Encoding.F32:
        return 4 * n_elements
    if encoding is Encoding.BF16:
        return 2 * n_elements
    return _block_count(n_elements) * (SCALE_BYTES + _CODE_BYTES[encoding])


def _block_count(n: int) -> int:
    return -(-n // QUANT_BLOCK)
