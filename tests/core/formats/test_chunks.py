"""Sizes of chunks: a stream is cut without rest, and each encoding takes the bytes that its name promises."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats.chunks import (
    CHUNK_ELEMENTS,
    QUANT_BLOCK,
    Encoding,
    chunk_count,
    chunk_elements,
    encoded_bytes,
)


@pytest.mark.parametrize("n", [0, 1, QUANT_BLOCK, CHUNK_ELEMENTS - 1, CHUNK_ELEMENTS, CHUNK_ELEMENTS + 1, 10**7])
def test_the_chunks_of_a_stream_have_all_its_elements_and_only_the_last_is_short(n: int) -> None:
    sizes = [chunk_elements(n, k) for k in range(chunk_count(n))]
    assert sum(sizes) == n and all(size == CHUNK_ELEMENTS for size in sizes[:-1]) and all(sizes)
    for k in (-1, chunk_count(n)):
        with pytest.raises(ValueError, match=f"{n} elements has {len(sizes)} chunks; found chunk number {k}"):
            chunk_elements(n, k)


@pytest.mark.parametrize(
    ("encoding", "sizes"),
    [
        (Encoding.F32, (0, 4, 1024, 1028)),
        (Encoding.BF16, (0, 2, 512, 514)),
        (Encoding.INT8, (0, 260, 260, 520)),
        (Encoding.Q4, (0, 132, 132, 264)),
    ],
)
def test_the_bytes_of_0_1_256_and_257_elements(encoding: Encoding, sizes: tuple[int, ...]) -> None:
    assert tuple(encoded_bytes(n, encoding) for n in (0, 1, 256, 257)) == sizes
    with pytest.raises(ValueError, match="0 or more elements; found -1"):
        encoded_bytes(-1, encoding)


def test_a_chunk_is_a_whole_number_of_blocks() -> None:
    assert CHUNK_ELEMENTS % QUANT_BLOCK == 0
