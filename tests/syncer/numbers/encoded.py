"""Deltas as two ranks push them, and what they decode to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.formats import chunks
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS, Encoding
from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.core.numbers import codec
from swift_diloco.core.numbers.merge import MergeRule, slots_of
from syncer.numbers.buffers import ValueBuffers
from syncer.numbers.deltas import EncodedDelta
from syncer.numbers.fragment_stream import FragmentStream
from tests.syncer.served import column_cut

Floats = NDArray[np.float32]
LAYOUT = make_layout(
    [
        TensorSpec("a", (700, 500), "avg"),
        TensorSpec("b", (64, 40), "rda"),
        TensorSpec("c", (64,), "rda"),
        TensorSpec("d", (4500, 300), "rda"),
        TensorSpec("e", (3, 500_000), "avg"),
    ]
)
FRAGMENTS = plan_fragments(LAYOUT, 1, "binpack")
SIZE = sum(spec.elements for spec in LAYOUT.tensors)
SLOTS = slots_of((spec.elements, MergeRule(spec.rule)) for spec in LAYOUT.tensors)
LOSSY = [Encoding.BF16, Encoding.INT8, Encoding.Q4]


def floats(seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


def encoded(values: Floats, encoding: Encoding) -> tuple[EncodedDelta, Floats]:
    """A delta pushed by two ranks that cut by columns, and what it decodes to."""
    pieces = {rank: PieceMap(LAYOUT, FRAGMENTS, column_cut(LAYOUT, rank)) for rank in (0, 1)}
    streams = {rank: FragmentStream(each, 0) for rank, each in pieces.items()}
    delta = EncodedDelta(streams, encoding, FRAGMENTS.fragments[0], ValueBuffers())
    decoded = np.full(SIZE, np.nan, np.float32)
    for rank, stream in streams.items():
        for index in range(chunks.chunk_count(stream.elements)):
            size = chunks.chunk_elements(stream.elements, index)
            chunk = np.empty(size, np.float32)
            stream.gather(values, index * CHUNK_ELEMENTS, chunk)
            payload = codec.encode(chunk, encoding)
            delta.put(rank, index, payload.data)
            codec.decode(payload.data, encoding, chunk)
            stream.scatter(chunk, index * CHUNK_ELEMENTS, decoded)
    return delta, decoded
