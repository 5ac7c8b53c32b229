"""The decoders of the wire under random and damaged bytes."""

from __future__ import annotations

import random
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from swift_diloco.core.formats import chunks, frames
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.frames import WireError, decode_from_island, decode_from_syncer
from swift_diloco.core.layout.tensors import DIMENSIONS_MAX
from swift_diloco.core.numbers import codec
from tests.fuzz.inputs import NASTY, SEEDS, Frames, damaged

DECODERS = [decode_from_island, decode_from_syncer]
DAMAGED_INPUTS = 3000
GROWTH_BYTES_MAX = 256 * 1024
"""What thousands of refusals may leave behind: caches of the interpreter."""

PEAK_FACTOR_MAX = 32
"""Bytes built of one byte of input at most: an object of a message for a few bytes of MessagePack."""


def take(parts: Frames) -> bool:
    """Whether either decoder takes the frames; what they raise must be a refusal."""
    taken = False
    for decode in DECODERS:
        try:
            message, payload = decode(parts)
        except WireError as error:
            assert str(error)
            continue
        taken = True
        again = frames.encode(message, payload)
        assert decode(again) == (message, payload)
    return taken


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=200), max_size=4))
@example([])
@example([frames.PREAMBLE, b"\x91" * 100_000])
def test_any_bytes_are_refused_or_a_message(parts: Frames) -> None:
    take(parts)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300), st.sampled_from([None, b"", b"x" * 100]))
def test_any_header_behind_a_good_preamble_is_refused_or_a_message(header: bytes, payload: bytes | None) -> None:
    take([frames.PREAMBLE, header] if payload is None else [frames.PREAMBLE, header, payload])


@pytest.mark.parametrize("seed", range(4))
def test_damaged_messages_are_refused_or_messages_and_nothing_grows(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        take(damaged(rng.choice(SEEDS), rng))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        taken = sum(take(damaged(rng.choice(SEEDS), rng)) for _ in range(DAMAGED_INPUTS // 4))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < GROWTH_BYTES_MAX
    assert 0 < taken < DAMAGED_INPUTS // 4, "the damage is not damage, or nothing is left of any message"


@pytest.mark.parametrize("nasty", NASTY, ids=lambda nasty: nasty[:6].hex())
def test_a_claim_of_size_builds_nothing(nasty: bytes) -> None:
    """A few bytes that promise 2**32 elements cost no more than themselves."""
    tracemalloc.start()
    try:
        for seed in SEEDS:
            for cut in (1, len(seed[1]) // 2, len(seed[1]) - 1):
                take([seed[0], seed[1][:cut] + nasty, *seed[2:]])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1024 * 1024


def array_header(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("kind", "field", "element", "count"),
    [
        ("RankHello", "boxes", b"\x93\x00\x90\x90", 4_000_001),
        ("RankHello", "boxes", b"\x93\x00" + array_header(DIMENSIONS_MAX + 1) + b"\x00" * 9 + b"\x90", 1),
        ("Leave", "reason", b"x", 70_000),
    ],
)
def test_what_is_too_long_is_refused_before_anything_is_built_of_it(
    kind: str, field: str, element: bytes, count: int
) -> None:
    head = msgspec.msgpack.encode({"type": kind, "session": "s", "generation": "g", "token": "t", "rank": 0})
    if field == "reason":
        body = b"\xdb" + count.to_bytes(4, "big") + element * count
    else:
        body = array_header(count) + element * count
    header = bytes([head[0] + 1]) + head[1:] + msgspec.msgpack.encode(field) + body
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=r"of length <= |header of 70\d+ bytes"):
            decode_from_island([frames.PREAMBLE, header])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


def test_a_long_message_costs_a_bounded_multiple_of_its_bytes() -> None:
    count = 200_000
    head = msgspec.msgpack.encode({"type": "RankHello", "session": "s", "generation": "g", "token": "t", "rank": 0})
    header = bytes([head[0] + 1]) + head[1:] + b"\xa5boxes" + array_header(count) + b"\x93\x00\x90\x90" * count
    tracemalloc.start()
    try:
        decode_from_island([frames.PREAMBLE, header])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < PEAK_FACTOR_MAX * len(header)


@pytest.mark.parametrize("encoding", list(Encoding))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_payload_of_the_right_size_decodes_inside_its_bounds(encoding: Encoding, data: st.DataObject) -> None:
    elements = data.draw(st.integers(1, 700))
    payload = data.draw(st.binary(min_size=(size := chunks.encoded_bytes(elements, encoding)), max_size=size))
    room = np.full(elements + 2, 7.0, np.float32)
    codec.decode(payload, encoding, room[1:-1])
    assert room[0] == room[-1] == 7.0


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("wrong", [-1, 1, 1000])
def test_a_payload_of_another_size_is_refused(encoding: Encoding, wrong: int) -> None:
    with pytest.raises(ValueError, match="elements in"):
        codec.decode(bytes(chunks.encoded_bytes(300, encoding) + wrong), encoding, np.empty(300, np.float32))
