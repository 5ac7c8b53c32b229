"""What happens to the coordinator (events, past tense) and what it wants done (effects, imperative).

The coordinator is a pure state machine; the server performs its effects and reports their ends as events. Neither
carries tensors: values are named, uploads are named, and the buffers behind the names belong to the server.
"""

from __future__ import annotations

from dataclasses import dataclass

from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.manifest import SavedState
from swift_diloco.core.formats.messages import IslandMessage, SyncerMessage, ValueName
from swift_diloco.core.formats.tape_lines import TapeLine
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import Layout

Peer = str
"""One connection, by its routing id in hex. Never reused."""

# ---------------------------------------------------------------------------------------------------------------------
# Events
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restored:
    """The process goes on from a checkpoint: this run, before anything else happens."""

    state: SavedState
    layout: Layout
    plan: FragmentPlan


@dataclass(frozen=True)
class Received:
    """A control message arrived (never `Chunk`, `Fetch` or `Fetched`: the server's transfers take those)."""

    peer: Peer
    message: IslandMessage


@dataclass(frozen=True)
class PeerGone:
    """The connection is closed: the process died or the link was cut."""

    peer: Peer


@dataclass(frozen=True)
class UploadProgressed:
    """Chunks of an upload arrived since the last such event (at most one per upload and second)."""

    upload: str


@dataclass(frozen=True)
class UploadCompleted:
    """Every box of an upload is there with good checksums. `payload_bytes` travelled."""

    upload: str
    payload_bytes: int


@dataclass(frozen=True)
class UploadFailed:
    """A rank could not deliver an upload undamaged. The server has dropped it and cancelled it on every rank."""

    upload: str
    reason: str


@dataclass(frozen=True)
class InitAdopted:
    """The initial values are assembled and named; version 0 of each fragment."""

    values: tuple[ValueName, ...]


@dataclass(frozen=True)
class MergeFinished:
    """The new values of a round are computed, not yet visible. Not `finite`: void by the deltas of `offenders`."""

    t: int
    attempt: int
    digest: str
    finite: bool = True
    offenders: tuple[int, ...] = ()
    merge_s: float = 0.0


@dataclass(frozen=True)
class FragmentWritten:
    """A fragment's part of a checkpoint is on the disk: its present value may be replaced."""

    number: int
    fragment: int


@dataclass(frozen=True)
class CheckpointWritten:
    """A checkpoint is whole and on the disk."""

    number: int


@dataclass(frozen=True)
class CheckpointFailed:
    """A checkpoint could not be written. Earlier ones are as they were."""

    number: int
    reason: str


@dataclass(frozen=True)
class StopRequested:
    """The syncer is to stop: a signal (SIGTERM or SIGINT) says so, or nobody has been connected for too long."""

    signal: bool = True


@dataclass(frozen=True)
class TimePassed:
    """`next_wakeup` is reached, and what had arrived before was handled: a stall of this process makes nobody silent.
    Carries nothing: `now` is an argument of `handle`."""


UploadNews = UploadProgressed | UploadCompleted | UploadFailed
"""What happens to an upload."""

Event = (
    Restored
    | Received
    | PeerGone
    | UploadProgressed
    | UploadCompleted
    | UploadFailed
    | InitAdopted
    | MergeFinished
    | FragmentWritten
    | CheckpointWritten
    | CheckpointFailed
    | StopRequested
    | TimePassed
)

# ---------------------------------------------------------------------------------------------------------------------
# Effects
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Send a control message to one connection."""

    peer: Peer
    message: SyncerMessage


@dataclass(frozen=True)
class AdoptLayout:
    """The layout and its fragments are fixed from now on: make room for values."""

    layout: Layout
    plan: FragmentPlan


@dataclass(frozen=True)
class RegisterRank:
    """A rank's bulk link belongs to this generation; its streams follow from its boxes.

    Replaces an earlier link of the rank.
    """

    generation: str
    island: int
    rank: int
    peer: Peer
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class ForgetGeneration:
    """The generation is over: void its links, pins and unfinished uploads."""

    generation: str
    reason: str


@dataclass(frozen=True)
class OpenUpload:
    """Receive an upload of one fragment: grant windows to every rank of the generation that owns pieces of it."""

    upload: str
    generation: str
    fragment: int
    encoding: Encoding


@dataclass(frozen=True)
class DropUpload:
    """Forget an upload, finished or not, and cancel what is left of it."""

    upload: str
    reason: str


@dataclass(frozen=True)
class AdoptInit:
    """Make version 0 of every fragment from these uploads (in fragment order). Answered by `InitAdopted`."""

    uploads: tuple[str, ...]
    run: str = ""
    """The run that begins; announced with the values."""
    announce: bool = True
    """False: the values stay unknown until `AnnounceAll`."""


@dataclass(frozen=True)
class AnnounceAll:
    """Announce the present value of every fragment to every link."""


@dataclass(frozen=True)
class MergeInput:
    """One contribution to a merge: a complete upload (None: an empty answer is never merged) and its weight."""

    island: int
    upload: str
    weight: float


@dataclass(frozen=True)
class Merge:
    """Merge contributions (in island order) and take the outer step, beside the present values.

    Answered by `MergeFinished`.
    """

    t: int
    attempt: int
    fragment: int
    contributions: tuple[MergeInput, ...]


@dataclass(frozen=True)
class Commit:
    """Make the result of a merge the present value, announce it to every link of every generation, free `uploads`."""

    t: int
    name: ValueName
    uploads: tuple[str, ...]


@dataclass(frozen=True)
class DiscardMerge:
    """Forget the result of a merge (a void commit); free `uploads`."""

    t: int
    uploads: tuple[str, ...]


@dataclass(frozen=True)
class WriteCheckpoint:
    """Write a checkpoint beside everything else. A value of it that is not present is the result of a merge that waits
    for its commit.

    Answered by `FragmentWritten` for each fragment that the last written checkpoint has not, then by
    `CheckpointWritten`; or by `CheckpointFailed`. One at a time.
    """

    number: int
    state: SavedState


@dataclass(frozen=True)
class WriteFirst:
    """Write this fragment of the running checkpoint before the others: its commit waits."""

    fragment: int


@dataclass(frozen=True)
class WriteTape:
    """Append one line to the event tape; the server adds the wall-clock time."""

    line: TapeLine


@dataclass(frozen=True)
class Log:
    """Tell people."""

    level: str
    text: str


@dataclass(frozen=True)
class Exit:
    """End the process."""

    code: int
    reason: str
    finished: bool = False
    """The run is over: its final cut was served."""
    untold: tuple[int, ...] = ()
    """Islands that did not say that they had saved it."""


Effect = (
    Send
    | AdoptLayout
    | RegisterRank
    | ForgetGeneration
    | OpenUpload
    | DropUpload
    | AdoptInit
    | Merge
    | Commit
    | DiscardMerge
    | AnnounceAll
    | WriteCheckpoint
    | WriteFirst
    | WriteTape
    | Log
    | Exit
)
