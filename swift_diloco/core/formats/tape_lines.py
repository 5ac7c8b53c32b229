"""The lines of the event tape: one frozen Struct per event, one JSON object a line. Encoded and decoded only here.

A line begins with its event and the wall-clock time at which it was written; the brain, which knows no clock, leaves
the time to whoever writes. `t` is always an outer step, a name that ends in `_s` is in seconds, and steps without
another word are local steps of an island.

A reader knows every event and every field, or it refuses: what proves something from a tape must not pass over what it
does not understand. The one thing it passes over is a line that is no JSON: its writer was killed in the middle of it.

The format's version is in `opened`, the line with which each process that appends to a tape begins: one tape has many
writers, and they need not be of one version. A tape that begins without it is older than that line, and of format 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeVar, get_args

import msgspec

from swift_diloco.core.errors import UserError

FORMAT = 1
"""Raised with every change that an older reader would misread; what it does not know it refuses anyway."""

FOUND_MAX = 200
"""Characters of a refused line that the refusal repeats."""


class TapeError(UserError):
    """A line that is not one of this format."""


def _event_of(name: str) -> str:
    """`CheckpointFailed` is told as `checkpoint_failed`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="event", tag=_event_of):
    """What all lines have."""

    time: Annotated[float, msgspec.Meta(gt=0)] = 0.0
    """Seconds since 1970; 0 until it is written."""


# ---------------------------------------------------------------------------------------------------------------------
# The run
# ---------------------------------------------------------------------------------------------------------------------


class Opened(Line, frozen=True, kw_only=True):
    """A process begins to append lines of this format."""

    format: int


class FragmentSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fragment of the layout."""

    id: int
    tensors: int
    elements: int
    bytes: int
    """Of its FP32 values."""


class Init(Line, frozen=True, kw_only=True):
    """A new run begins with version 0 of every fragment."""

    run: str
    fragments: tuple[FragmentSize, ...]
    layout: str
    """Fingerprint of the layout."""


class Resumed(Line, frozen=True, kw_only=True):
    """A run goes on from a checkpoint: commits after its outer step `t` are taken back."""

    t: int
    run: str
    versions: tuple[int, ...]
    """Per fragment."""
    carried: tuple[str, ...]
    """Late pushes that the checkpoint holds."""


class Checkpoint(Line, frozen=True, kw_only=True):
    """A checkpoint of outer step `t` is on the disk."""

    t: int
    final: bool
    """Its values are the final cut."""


class CheckpointFailed(Line, frozen=True, kw_only=True):
    """The checkpoint of outer step `t` could not be written."""

    t: int
    reason: str


class Final(Line, frozen=True, kw_only=True):
    """The final cut is out after outer step `t`."""

    t: int
    versions: tuple[int, ...]
    """Per fragment."""


class Stopped(Line, frozen=True, kw_only=True):
    """The syncer ends before the run does."""

    reason: str


class Admin(Line, frozen=True, kw_only=True):
    """An operator gave an order."""

    command: str
    island: int | None
    """The island that was meant; None: every one."""
    done: bool
    """Whether it was followed."""
    text: str
    """What was done, or why not."""
    reason: str
    """The operator's own words."""


# ---------------------------------------------------------------------------------------------------------------------
# Islands
# ---------------------------------------------------------------------------------------------------------------------


class Joined(Line, frozen=True, kw_only=True):
    """A generation of an island became a member at its local step `step`."""

    island: int
    generation: str
    step: int
    reason: str


class Left(Line, frozen=True, kw_only=True):
    """A member's generation ended."""

    island: int
    generation: str
    reason: str


class Stateless(Line, frozen=True, kw_only=True):
    """An island that has trained before came to a syncer without state."""

    island: int


class Done(Line, frozen=True, kw_only=True):
    """A member is at its last local step."""

    island: int
    generation: str
    step: int


class Fetched(Line, frozen=True, kw_only=True):
    """A rank has all its pieces of a published value."""

    island: int
    generation: str
    rank: int
    fragment: int
    version: int
    digest: str
    bytes: int
    """Payload that was sent to it."""


# ---------------------------------------------------------------------------------------------------------------------
# Pushes and commits
# ---------------------------------------------------------------------------------------------------------------------


class Refused(Line, frozen=True, kw_only=True):
    """A push, or a Hello (then `push` and `fragment` are None), was not taken."""

    island: int
    push: str | None
    fragment: int | None
    reason: str


class Pushed(Line, frozen=True, kw_only=True):
    """A push for outer step `t` was admitted; its upload begins."""

    island: int
    generation: str
    push: str
    t: int
    fragment: int
    base_version: int
    """Version of its anchor."""
    base_digest: str
    steps: int
    """Since its island installed the anchor."""
    tokens: int
    capture_step: int
    """The island's step when it was captured."""


class Carried(Line, frozen=True, kw_only=True):
    """A push that missed its outer step `t` is complete, and kept for the next one of its fragment."""

    island: int
    push: str
    t: int
    fragment: int


class Dropped(Line, frozen=True, kw_only=True):
    """A push for outer step `t` is in no value and never will be."""

    island: int
    push: str
    t: int
    fragment: int
    reason: str


class Contribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One push in a commit."""

    island: int
    generation: str
    push: str
    base_version: int
    lag: int
    """Versions that its anchor was behind."""
    steps: int
    tokens: int
    weight: float
    bytes: int
    """Payload that travelled."""
    capture_step: int
    carried: bool = False
    """It missed an earlier outer step; told only where it is so."""


class Commit(Line, frozen=True, kw_only=True):
    """Outer step `t` was taken, or is void: then the version stays and nothing was merged."""

    t: int
    fragment: int
    version: int
    digest: str
    void: bool
    contributions: tuple[Contribution, ...]
    """In the order in which floats were added."""
    offenders: tuple[int, ...]
    """Islands whose deltas made a result that is not finite."""
    quorum_s: float
    """From the launch to the quorum."""
    round_s: float
    """From the launch to now."""
    merge_s: float


TapeLine = (
    Opened
    | Init
    | Resumed
    | Checkpoint
    | CheckpointFailed
    | Final
    | Stopped
    | Admin
    | Joined
    | Left
    | Stateless
    | Done
    | Fetched
    | Refused
    | Pushed
    | Carried
    | Dropped
    | Commit
)

SomeLine = TypeVar("SomeLine", bound=Line)

KINDS: dict[str, type[Line]] = {str(kind.__struct_config__.tag): kind for kind in get_args(TapeLine)}
"""Every kind of line by its event."""


class _Head(msgspec.Struct):
    """Only the event of a line, for a refusal."""

    event: str = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(TapeLine)
_head = msgspec.json.Decoder(_Head)


def encode(line: TapeLine, time_s: float) -> bytes:
    """A line as it is written at `time_s`, with its end."""
    return _encoder.encode(msgspec.structs.replace(line, time=round(time_s, 6))) + b"\n"


def decode(raw: bytes, number: int) -> TapeLine | None:
    """Line `number` of a tape; None for one that was torn off. Raises `TapeError` for what is not of this format."""
    try:
        line: TapeLine = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _refusal(raw, number, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not line.time:
        raise _refusal(raw, number, "Object missing required field `time`")
    if isinstance(line, Opened) and line.format != FORMAT:
        raise _refusal(raw, number, f"the lines after it are of format {line.format}, and this reads {FORMAT}")
    return line


def decode_all(raws: Iterable[bytes]) -> Iterator[tuple[int, TapeLine | None]]:
    """All lines of a tape with their numbers, as `decode` tells them. Raises `TapeError` also for one that no process
    can have left so: torn off, and followed by more of the same process."""
    torn, told = 0, False
    for number, raw in enumerate(raws, 1):
        line = decode(raw, number)
        told = told or isinstance(line, Opened)  # tapes of before tell no processes
        if torn and told and line is not None and not isinstance(line, Opened):
            raise TapeError(
                f"line {torn} of the tape is damaged: only the last line of a process that was killed may be torn off, "
                f"and it is followed by {type(line).__name__}; take the tape from a backup, or audit a copy without it"
            )
        torn = number if line is None else 0
        yield number, line


def _refusal(raw: bytes, number: int, fault: str) -> TapeError:
    """What was found where, and what was expected."""
    try:
        event = _head.decode(raw).event
    except msgspec.ValidationError:
        event = ""
    kind = KINDS.get(event)
    expected = f"an event of {', '.join(KINDS)}" if kind is None else f"the fields {', '.join(kind.__struct_fields__)}"
    found = raw[:FOUND_MAX].decode(errors="replace").strip()
    return TapeError(
        f"line {number} of the tape (event {event!r}): {fault}; expected {expected}; found {found}; "
        "read a tape with the swift-diloco that wrote it, or a newer one"
    )
