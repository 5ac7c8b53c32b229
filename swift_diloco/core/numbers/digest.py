"""Names and checksums of bytes.

The digest of a fragment is one xxh3-128 over the xxh3-128 digests of its blocks of 32 MiB, so that the blocks can be
hashed on several threads and the result does not depend on how many there are. xxh3 finds accidents, not attackers:
who may speak at all is decided by the transport's keys.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import xxhash
from numpy.typing import NDArray

DIGEST_BLOCK_BYTES = 32 * 1024 * 1024
"""Bytes of one block; part of what the digest means, so changing it makes every stored digest foreign."""


def fragment_digest(values: NDArray[np.float32], pool: ThreadPoolExecutor | None = None) -> str:
    """32 hex digits that name the FP32 values of a fragment in layout order (1-D, contiguous, little-endian).

    Raises `ValueError` for another type, shape or memory order. Do not call it from a job of the same `pool`.
    """
    if values.dtype != np.dtype("<f4") or values.ndim != 1 or not values.flags.c_contiguous:
        raise ValueError(
            f"a digest names contiguous 1-D little-endian float32 values; found {values.dtype} of shape {values.shape}"
        )
    data = values.view(np.uint8).data
    blocks = [data[low : low + DIGEST_BLOCK_BYTES] for low in range(0, len(data), DIGEST_BLOCK_BYTES)]
    digests = map(xxhash.xxh3_128_digest, blocks) if pool is None else pool.map(xxhash.xxh3_128_digest, blocks)
    return str(xxhash.xxh3_128_hexdigest(b"".join(digests)))


def checksum(buffer: bytes | bytearray | memoryview | NDArray[np.uint8]) -> int:
    """xxh3-64 of the bytes of one chunk, as an unsigned 64-bit integer."""
    return int(xxhash.xxh3_64_intdigest(buffer.data if isinstance(buffer, np.ndarray) else buffer))
