"""Messages to ZeroMQ frames and back: [magic + wire version][msgpack header][payload, only with bulk messages].

The only place that knows the bytes. Nothing is allocated for a message before its version, its kind and its sizes were
judged, and nothing is ever unpickled. What does not fit is a `WireError`, whose text tells the peer what was expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from swift_diloco.core.errors import PeerError
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS
from swift_diloco.core.formats.messages import Chunk, Hello, IslandMessage, Piece, RankHello, SyncerMessage, Welcome
from swift_diloco.core.formats.operator_messages import AdminReply

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

KIND_MAX = 32
"""Characters of an unknown kind that a refusal repeats."""

Buffer = bytes | bytearray | memoryview
Message = TypeVar("Message")

_encoder = msgspec.msgpack.Encoder()
_BIG_KINDS = {kind.__name__ for kind in (Hello, RankHello, Welcome, AdminReply)}


class _Kind(msgspec.Struct, gc=False):
    """The kind of a header; whatever else is in it is skipped, not built."""

    type: str = ""


_kind_of = msgspec.msgpack.Decoder(_Kind)
_from_island: msgspec.msgpack.Decoder[IslandMessage] = msgspec.msgpack.Decoder(IslandMessage)
_from_syncer: msgspec.msgpack.Decoder[SyncerMessage] = msgspec.msgpack.Decoder(SyncerMessage)


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
    return _decoded(frames, _from_island, "an island")


def decode_from_syncer(frames: Sequence[Buffer]) -> tuple[SyncerMessage, Buffer | None]:
    """What the syncer sent. Raises `WireError`."""
    return _decoded(frames, _from_syncer, "a syncer")


def decode_header(header: Buffer) -> SyncerMessage:
    """A control message from its header alone (rank 0 shares headers with the other ranks). Raises `WireError`."""
    return decode_from_syncer([PREAMBLE, header])[0]


def _decoded(
    frames: Sequence[Buffer], decoder: msgspec.msgpack.Decoder[Message], sender: str
) -> tuple[Message, Buffer | None]:
    header, payload = _judged(frames)
    try:
        _check_header(header)
        message = decoder.decode(header)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"not a message from {sender}: {error}") from None
    if (payload is not None) != isinstance(message, Chunk | Piece):
        raise WireError(f"a {type(message).__name__} {'with' if payload is not None else 'without'} payload")
    return message, payload


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


def _check_header(header: Buffer) -> None:
    """A long header is of one of the few kinds that may be long; its kind is read before anything is built of it."""
    if len(header) <= HEADER_BYTES_MAX:
        return
    kind = _kind_of.decode(header).type
    if kind not in _BIG_KINDS:
        raise WireError(f"a {kind[:KIND_MAX]} header of {len(header)} bytes; at most {HEADER_BYTES_MAX} are taken")
