"""Messages to ZeroMQ frames and back: [magic + wire version][msgpack header][payload, only with bulk messages].

The only place that knows the bytes. Nothing is allocated for a message before its version and sizes were judged, and
nothing
is ever unpickled. What does not fit is a `WireError`, whose text tells the peer what was expected.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from swift_diloco.core.codec import CHUNK_ELEMENTS
from swift_diloco.core.errors import PeerError
from swift_diloco.core.messages import Chunk, Hello, IslandMessage, Piece, RankHello, SyncerMessage, Welcome

WIRE_VERSION = 1
"""Raised with every change that an older peer would misread."""

MAGIC = b"SDLC"
PREAMBLE = MAGIC + WIRE_VERSION.to_bytes(2, "big")

HEADER_BYTES_MAX = 64 * 1024
"""Largest header of an ordinary message: names and numbers of a few hundred fragments."""

BIG_HEADER_BYTES_MAX = 64 * 1024 * 1024
"""Largest header of a message that carries a layout, boxes or a fragment plan."""

PAYLOAD_BYTES_MAX = CHUNK_ELEMENTS * 4
"""Largest payload: one chunk of float32."""

FRAMES_MAX = 3

Buffer = bytes | bytearray | memoryview

_encoder = msgspec.msgpack.Encoder()
_from_island = msgspec.msgpack.Decoder(IslandMessage)
_from_syncer = msgspec.msgpack.Decoder(SyncerMessage)


class WireError(PeerError):
    """The peer sent bytes that are not a message of this protocol, this version, this direction or these limits."""


def encode(message: IslandMessage | SyncerMessage, payload: Buffer | None = None) -> list[Buffer]:
    """The frames of a message. Only `Chunk` and `Piece` have a payload, which is not copied."""
    assert (payload is not None) == isinstance(message, Chunk | Piece), f"payload of {type(message).__name__}"
    frames: list[Buffer] = [PREAMBLE, _encoder.encode(message)]
    if payload is not None:
        frames.append(payload)
    return frames


def decode_from_island(frames: Sequence[Buffer]) -> tuple[IslandMessage, Buffer | None]:
    """What an island sent. Raises `WireError`."""
    header, payload = _judged(frames)
    try:
        message: IslandMessage = _from_island.decode(header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a message from an island: {error}") from None
    _check_sizes(message, header, payload)
    return message, payload


def decode_from_syncer(frames: Sequence[Buffer]) -> tuple[SyncerMessage, Buffer | None]:
    """What the syncer sent. Raises `WireError`."""
    header, payload = _judged(frames)
    try:
        message: SyncerMessage = _from_syncer.decode(header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a message from a syncer: {error}") from None
    _check_sizes(message, header, payload)
    return message, payload


def decode_header(header: Buffer) -> SyncerMessage:
    """A control message from its header alone (rank 0 shares headers with the other ranks). Raises `WireError`."""
    return decode_from_syncer([PREAMBLE, header])[0]


def _judged(frames: Sequence[Buffer]) -> tuple[Buffer, Buffer | None]:
    if not 2 <= len(frames) <= FRAMES_MAX:
        raise WireError(f"a message of {len(frames)} frames; expected 2 or {FRAMES_MAX}")
    preamble = bytes(memoryview(frames[0])[:16])
    if preamble[: len(MAGIC)] != MAGIC or len(preamble) != len(PREAMBLE):
        raise WireError("not a swift-diloco peer: the first frame does not begin with its magic")
    if preamble != PREAMBLE:
        theirs = int.from_bytes(preamble[len(MAGIC) :], "big")
        raise WireError(f"wire version {theirs}; expected {WIRE_VERSION}; install the same swift-diloco on both sides")
    if len(frames[1]) > BIG_HEADER_BYTES_MAX:
        raise WireError(f"a header of {len(frames[1])} bytes; at most {BIG_HEADER_BYTES_MAX} are taken")
    payload = frames[2] if len(frames) == FRAMES_MAX else None
    if payload is not None and len(payload) > PAYLOAD_BYTES_MAX:
        raise WireError(f"a payload of {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} are taken")
    return frames[1], payload


def _check_sizes(message: IslandMessage | SyncerMessage, header: Buffer, payload: Buffer | None) -> None:
    kind = type(message).__name__
    if len(header) > HEADER_BYTES_MAX and not isinstance(message, Hello | RankHello | Welcome):
        raise WireError(f"a {kind} header of {len(header)} bytes; at most {HEADER_BYTES_MAX} are taken")
    if (payload is not None) != isinstance(message, Chunk | Piece):
        raise WireError(f"a {kind} {'with' if payload is not None else 'without'} payload")
