"""`status.json` and the answer to `swift-diloco status`: what a syncer does now. Encoded and decoded only here.

`RunStatus` is what the brain knows of the run, `Status` adds what the server knows of the process. Names that end in
`_s` are in seconds, `t` is always an outer step, and a step without another word is a local step of an island.

A reader refuses a field that it does not know: what it left out might be what the one who looks needs to see.
"""

from __future__ import annotations

import msgspec

from swift_diloco.core.errors import UserError


class OpenRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A round that is not committed."""

    t: int
    fragment: int
    attempt: int
    stage: str
    complete: int
    """Complete answers."""
    needed: int
    """K."""


class MemberStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One member."""

    island: int
    host: str
    step: int
    step_s: float | None
    """Time of a local step; None until two are known."""
    waiting: bool
    """The oldest open round waits for its answer."""
    done: bool
    """It is at its last step."""
    linked: bool
    """Its control link is open."""


class LateStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A push that missed its round."""

    island: int
    fragment: int
    missed: int
    """The outer step that it missed."""
    complete: bool
    """Otherwise it still arrives."""


class CheckpointStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the checkpoints are."""

    t: int | None
    """Outer step of the newest; None: there is none."""
    writing: str
    """What is being written, in words; empty: nothing."""
    fault: str
    """Why the last could not be written; empty: it could."""


class RunStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the coordinator tells of its run."""

    phase: str
    run: str
    """Empty before INIT."""
    t: int
    """The last outer step that was committed."""
    versions: tuple[int, ...]
    """Per fragment; empty before INIT."""
    open: tuple[OpenRound, ...]
    members: tuple[MemberStatus, ...]
    """In the order of their ids."""
    late: tuple[LateStatus, ...]
    checkpoint: CheckpointStatus
    joining: tuple[int, ...]
    """Islands that are welcomed and no members yet."""
    waiting_for: str


class Status(RunStatus, frozen=True, kw_only=True):
    """What the syncer tells of itself."""

    time: float
    """When it was told: seconds since 1970."""
    bytes_pushed: int
    """Payload that arrived in this life of the process."""
    bytes_fetched: int
    """Payload that left."""
    bad_messages: int
    stale_messages: int
    """Messages of an earlier session or generation."""
    address: str
    pid: int


_decoder = msgspec.json.Decoder(Status)


class StatusError(UserError):
    """A status that is not of this format."""


def encode(status: Status) -> bytes:
    """A status as JSON, in one line."""
    return msgspec.json.encode(status)


def decode(raw: str | bytes) -> Status:
    """A status that a syncer told. Raises `StatusError`."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StatusError(
            f"this is no status of a syncer of this version: {error}; expected the fields "
            f"{', '.join(Status.__struct_fields__)}; look at it with the swift-diloco that runs the syncer"
        ) from None
