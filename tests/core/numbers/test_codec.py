"""Encodings against golden bytes, a scalar reference, torch's bf16 and bounds on what they lose."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS, Encoding, chunk_count, chunk_elements, encoded_bytes
from swift_diloco.core.numbers.codec import ErrorFeedback, decode, encode, is_finite

F32 = NDArray[np.float32]
CHECK = settings(max_examples=25, deadline=None, derandomize=True, database=None)
EVERY = pytest.mark.parametrize("encoding", list(Encoding), ids=lambda e: e.value)
BLOCK_SCALED = pytest.mark.parametrize("encoding", [Encoding.INT8, Encoding.Q4], ids=lambda e: e.value)


def round_trip(values: F32, encoding: Encoding) -> F32:
    out = np.full(values.size, 77.0, np.float32)
    decode(encode(values, encoding).tobytes(), encoding, out)
    return out


def random_values(n: int, seed: int = 0) -> F32:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 3, n)).astype(np.float32)


def floats(limit: float = 2.0**100) -> st.SearchStrategy[F32]:
    element = st.floats(-limit, limit, width=32, allow_nan=False)
    return arrays(np.float32, st.integers(1, 600), elements=element)


def test_q4_golden_bytes() -> None:
    payload = encode(np.array([1.0, -0.5, 0.25, 0.0], np.float32), Encoding.Q4)
    assert payload.size == 132
    assert payload[:4].tobytes() == struct.pack("<f", 1.0)
    assert payload[4:6].tobytes().hex() == "e705"
    assert not payload[6:].any()


def test_q4_rounds_to_the_nearest_power_of_two_in_log_space() -> None:
    # Between 2^-k and 2^-k-1 the limit is 2^-k-0.5; below 2^-6.5 of the scale a value becomes 0.
    values = np.array([8, 8 * 0.7072, 8 * 0.7071, 8 * 0.3536, 8 * 0.3535, 8 * 0.01105, 8 * 0.01104, -0.08], np.float32)
    assert round_trip(values, Encoding.Q4).tolist() == [8, 8, 4, 4, 2, 0.125, 0, 0]


def test_int8_golden_bytes() -> None:
    payload = encode(np.array([127.0, -127.0, 1.4, -0.6, 0.0], np.float32), Encoding.INT8)
    assert payload.size == 260
    assert payload[:9].tobytes() == struct.pack("<f", 1.0) + bytes([127, 129, 1, 255, 0])
    assert not payload[9:].any()


def test_bf16_golden_bytes_round_to_nearest_even() -> None:
    bits = np.array([0x3F80_0000, 0x3F80_8000, 0x3F81_8000, 0x3F80_8001, 0x7F7F_FFFF, 0x8000_0000], np.uint32)
    codes = encode(bits.view(np.float32), Encoding.BF16).view("<u2")
    assert [hex(c) for c in codes] == ["0x3f80", "0x3f80", "0x3f82", "0x3f81", "0x7f80", "0x8000"]


def test_bf16_keeps_what_is_not_a_number() -> None:
    bits = np.array([0x7F80_0001, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x7F80_0000, 0xFF80_0000], np.uint32)
    out = round_trip(bits.view(np.float32), Encoding.BF16)
    assert np.isnan(out[:3]).all()
    assert out[3:].tolist() == [np.inf, -np.inf]


def test_bf16_is_what_torch_makes_of_it(torch: Any) -> None:
    values = random_values(5000)
    assert np.array_equal(round_trip(values, Encoding.BF16), torch.from_numpy(values).bfloat16().float().numpy())


@given(floats())
@CHECK
def test_f32_comes_back_with_its_bits(values: F32) -> None:
    assert round_trip(values, Encoding.F32).tobytes() == values.tobytes()


@given(floats())
@CHECK
def test_bf16_loses_at_most_half_of_its_last_bit(values: F32) -> None:
    error = np.abs(round_trip(values, Encoding.BF16).astype(np.float64) - values)
    assert np.all(error <= np.abs(values) * 2.0**-8 + 1e-40)


@given(floats())
@CHECK
def test_int8_loses_at_most_half_a_step_of_its_block(values: F32) -> None:
    out = round_trip(values, Encoding.INT8).astype(np.float64)
    for low in range(0, values.size, 256):
        block = values[low : low + 256].astype(np.float64)
        step = np.abs(block).max() / 127
        assert np.all(np.abs(out[low : low + 256] - block) <= step * 0.5001 + 1e-43)


@given(floats())
@CHECK
def test_q4_is_within_a_factor_of_root_two_or_below_its_smallest_level(values: F32) -> None:
    out = round_trip(values, Encoding.Q4).astype(np.float64)
    for low in range(0, values.size, 256):
        block, got = values[low : low + 256].astype(np.float64), out[low : low + 256]
        scale = np.abs(block).max()
        if scale < 1e-30:
            continue
        kept = got != 0
        assert np.all(np.sign(got[kept]) == np.sign(block[kept]))
        assert np.all(np.abs(np.log2(got[kept] / block[kept])) <= 0.50001)
        assert np.all(np.abs(block[~kept]) <= scale * 2.0**-6.49999)


@BLOCK_SCALED
def test_scalar_reference_makes_the_same_codes(encoding: Encoding) -> None:
    values = random_values(700)
    payload = encode(values, encoding).tobytes()
    width = 256 if encoding is Encoding.INT8 else 128
    for block in range(3):
        part = values[block * 256 : block * 256 + 256]
        (scale,) = struct.unpack_from("<f", payload, block * (4 + width))
        codes = payload[block * (4 + width) + 4 : (block + 1) * (4 + width)]
        largest = np.float32(np.abs(part).max())
        if encoding is Encoding.INT8:
            assert scale == largest / np.float32(127)
            assert [c - 256 if c > 127 else c for c in codes[: part.size]] == [
                round(float(x / np.float32(scale))) for x in part
            ]
        else:
            assert scale == largest
            nibbles = [n for c in codes for n in (c & 15, c >> 4)]
            for nibble, x in zip(nibbles, part, strict=False):
                level = max(round(float(np.log2(np.abs(np.float64(x)) / largest))) + 7, 0) if x else 0
                assert nibble == (level | (8 if x < 0 and level else 0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@EVERY
def test_value_that_is_not_finite_stays_visible(encoding: Encoding, bad: float) -> None:
    values = random_values(600)
    values[300] = bad
    out = round_trip(values, encoding)
    assert not is_finite(out)
    assert is_finite(out[:256]) and is_finite(out[512:])


@BLOCK_SCALED
def test_hostile_scale_becomes_visible_even_with_zero_codes(encoding: Encoding) -> None:
    payload = bytearray(encoded_bytes(4, encoding))
    payload[:4] = struct.pack("<f", np.inf)
    out = np.zeros(4, np.float32)
    decode(payload, encoding, out)
    assert not is_finite(out)


@EVERY
def test_zeros_and_subnormals_survive_without_surprise(encoding: Encoding) -> None:
    values = np.zeros(300, np.float32)
    assert not round_trip(values, encoding).any()
    values[:2] = 1e-45, -3e-39
    assert np.abs(round_trip(values, encoding) - values).max() <= 3e-39


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 1000])
@EVERY
def test_size_is_known_beforehand(encoding: Encoding, n: int) -> None:
    per_block = {Encoding.INT8: 260, Encoding.Q4: 132}
    blocks = (n + 255) // 256
    expected = {Encoding.F32: 4 * n, Encoding.BF16: 2 * n}.get(encoding, per_block.get(encoding, 0) * blocks)
    assert encoded_bytes(n, encoding) == expected
    assert encode(random_values(n), encoding).size == expected


@EVERY
def test_given_buffer_is_filled_and_returned(encoding: Encoding) -> None:
    values = random_values(513)
    out = np.full(encoded_bytes(513, encoding), 0xAB, np.uint8)
    assert encode(values, encoding, out) is out
    assert out.tobytes() == encode(values, encoding).tobytes()


@EVERY
def test_payload_at_an_odd_address_is_decoded(encoding: Encoding) -> None:
    values = random_values(513)
    payload = memoryview(b"x" + encode(values, encoding).tobytes())[1:]
    out = np.empty(513, np.float32)
    decode(payload, encoding, out)
    assert np.array_equal(out, round_trip(values, encoding))


def test_f32_is_not_copied() -> None:
    values = random_values(10)
    assert np.shares_memory(encode(values, Encoding.F32), values)


@EVERY
def test_sizes_that_do_not_fit_are_named(encoding: Encoding) -> None:
    size = encoded_bytes(8, encoding)
    with pytest.raises(ValueError, match=f"are {size} bytes; found {size + 1}"):
        decode(bytes(size + 1), encoding, np.empty(8, np.float32))
    with pytest.raises(ValueError, match=f"need {size} contiguous bytes"):
        encode(random_values(8), encoding, np.empty(size - 1, np.uint8))
    with pytest.raises(ValueError, match="float64"):
        encode(np.zeros(8), encoding)  # type: ignore[arg-type]


def test_chunks_cover_the_stream() -> None:
    assert CHUNK_ELEMENTS == 262_144
    assert [chunk_count(n) for n in (0, 1, CHUNK_ELEMENTS, CHUNK_ELEMENTS + 1)] == [0, 1, 1, 2]
    n = 2 * CHUNK_ELEMENTS + 5
    assert [chunk_elements(n, k) for k in range(chunk_count(n))] == [CHUNK_ELEMENTS, CHUNK_ELEMENTS, 5]
    for k in (-1, 3):
        with pytest.raises(ValueError, match="has 3 chunks"):
            chunk_elements(n, k)


@pytest.mark.parametrize("encoding", [Encoding.BF16, Encoding.INT8, Encoding.Q4], ids=lambda e: e.value)
def test_error_feedback_sends_in_the_end_what_single_pushes_lose(encoding: Encoding) -> None:
    values = random_values(300)
    feedback, sent = ErrorFeedback(300, encoding), np.zeros(300)
    for _ in range(20):
        out = np.empty(300, np.float32)
        decode(feedback.encode(0, values), encoding, out)
        feedback.settle(True)
        sent += out
    # The law of error feedback: all that was sent plus the residual is all that was meant.
    scale = np.abs(values).max()
    assert np.allclose(sent + feedback.residual, 20.0 * values, rtol=1e-5, atol=scale * 1e-4)
    assert np.abs(feedback.residual).max() > 0


def test_error_feedback_forgets_a_dropped_push() -> None:
    values = random_values(300)
    feedback = ErrorFeedback(300, Encoding.Q4)
    first = feedback.encode(0, values).tobytes()
    feedback.settle(False)
    assert not feedback.residual.any()
    assert feedback.encode(0, values).tobytes() == first


def test_error_feedback_keeps_no_residual_of_what_is_not_finite() -> None:
    values = random_values(300)
    values[5] = np.nan
    feedback = ErrorFeedback(300, Encoding.INT8)
    feedback.encode(0, values)
    feedback.settle(True)
    assert not feedback.residual.any()


def test_error_feedback_of_f32_is_the_plain_encoding() -> None:
    values = random_values(300)
    assert ErrorFeedback(300, Encoding.F32).encode(0, values).tobytes() == values.tobytes()


def test_error_feedback_names_a_chunk_of_the_wrong_size() -> None:
    with pytest.raises(ValueError, match="has 300 elements; found 299"):
        ErrorFeedback(300, Encoding.Q4).encode(0, random_values(299))
