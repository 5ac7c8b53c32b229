"""Where fuzzing starts: every message there is, and how bytes get damaged on purpose."""

from __future__ import annotations

import random

from swift_diloco.core.formats import frames
from tests.core.formats.test_frames import FROM_ISLAND, FROM_SYNCER, payload_of

Frames = list[bytes]

SEEDS: list[Frames] = [
    [bytes(part) for part in frames.encode(message, payload_of(message))] for message in [*FROM_ISLAND, *FROM_SYNCER]
]
"""One good encoding of each message."""

NASTY = [
    b"",
    b"\x00",
    b"\xc1",  # never used in MessagePack
    b"\xdd\xff\xff\xff\xff",  # an array of 2**32 - 1
    b"\xdf\xff\xff\xff\xff",  # a map of 2**32 - 1
    b"\xdb\xff\xff\xff\xff",  # a text of 2**32 - 1
    b"\xc6\xff\xff\xff\xff",  # bytes of 2**32 - 1
    b"\xc9\xff\xff\xff\xff\x00",  # an extension of 2**32 - 1
    b"\x91" * 5000,  # arrays in arrays
    b"\x81\xa4type" * 2000,  # maps in maps
    b"\xcf" + b"\xff" * 8,
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # not a number
    b"\xa2\xff\xfe",  # a text that is not UTF-8
]
"""Pieces that break readers."""


def damaged(parts: Frames, rng: random.Random) -> Frames:
    """The frames of a message with one to four things wrong."""
    parts = list(parts)
    for _ in range(rng.randint(1, 4)):
        if not parts:
            break
        number = rng.randrange(len(parts))
        parts[number] = _damaged_frame(parts[number], rng)
        if rng.random() < 0.1:
            parts.insert(rng.randrange(len(parts) + 1), rng.choice(NASTY))
        if rng.random() < 0.1:
            del parts[rng.randrange(len(parts))]
    return parts


def _damaged_frame(frame: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(frame) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        return frame[:at]
    if kind == 1:
        return frame[:at] + rng.choice(NASTY) + frame[at:]
    if kind == 2:
        return frame[:at] + rng.choice(NASTY)
    if kind == 3:
        other = rng.choice(SEEDS)[1]
        return frame[:at] + other[rng.randrange(len(other)) :]
    flipped = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        if flipped:
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)
