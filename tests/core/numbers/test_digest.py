"""Digests and checksums against golden values and the definition spelled out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xxhash

from swift_diloco.core.numbers import digest
from swift_diloco.core.numbers.digest import checksum, fragment_digest


def test_digest_is_the_hash_of_the_block_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "DIGEST_BLOCK_BYTES", 64)
    values = np.arange(40, dtype=np.float32)  # 160 bytes: two whole blocks and a half one
    data = values.tobytes()
    blocks = b"".join(xxhash.xxh3_128_digest(part) for part in (data[:64], data[64:128], data[128:]))
    assert fragment_digest(values) == xxhash.xxh3_128_hexdigest(blocks)


def test_digest_does_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "DIGEST_BLOCK_BYTES", 4096)
    values = np.arange(100_000, dtype=np.float32)
    with ThreadPoolExecutor(4) as pool:
        assert fragment_digest(values, pool) == fragment_digest(values)


def test_digest_sees_one_bit_and_the_sign_of_zero() -> None:
    values = np.zeros(1000, np.float32)
    before = fragment_digest(values)
    values[999] = -0.0
    assert fragment_digest(values) != before


def test_digests_are_golden() -> None:
    assert digest.DIGEST_BLOCK_BYTES == 33_554_432
    assert fragment_digest(np.zeros(0, np.float32)) == "99aa06d3014798d86001c324468d497f"
    assert fragment_digest(np.arange(4, dtype=np.float32)) == "04d7da612253c16335607b6eccaf37f4"
    assert checksum(b"") == 0x2D06800538D394C2
    assert checksum(np.arange(4, dtype=np.float32).view(np.uint8)) == checksum(np.arange(4, dtype=np.float32).tobytes())


@pytest.mark.parametrize(
    "values", [np.zeros(4), np.zeros((2, 2), np.float32), np.zeros(8, np.float32)[::2]], ids=["f64", "2-D", "strided"]
)
def test_digest_refuses_other_types_shapes_and_orders(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> None:
    with pytest.raises(ValueError, match="contiguous 1-D little-endian float32"):
        fragment_digest(values)
