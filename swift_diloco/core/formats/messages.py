"""Every message that travels between an island and the syncer. Frozen Structs, encoded only in `frames.py`.

Directions are two separate unions, so that a message sent the wrong way cannot even be parsed. A message carries no
tensors: bulk payloads travel beside the header in a frame of their own (`Chunk` and `Piece`).

`session` names one life of the syncer process and `generation` one joining of an island; both are random and never
reused. Every message but those about joining itself carries both (`InGeneration`), so that what a socket replays into a
later life is told apart.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from swift_diloco.core.formats.operator_messages import AdminReply, AdminRequest, Order
from swift_diloco.core.layout.boxes import RANK_BOXES_MAX, Box
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import Layout


class ValueName(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A published value: fragment number, version (global outer step; 0 is the initial value) and digest (hex)."""

    fragment: int
    version: int
    digest: str


class Contract(msgspec.Struct, frozen=True):
    """What all islands must share. Lives in the syncer's settings and reaches islands in `Welcome`."""

    sync_every_steps: int = 24
    """H: local steps since its last install before an island answers a pull for a fragment."""
    align: str = "overwrite"
    """How an ordinary install treats local values: overwrite, blend or carry."""
    alpha: float = 0.0
    """Share of the local value that an ordinary install keeps (0 with overwrite)."""
    delta_encoding: str = "f32"
    publish_encoding: str = "f32"
    island_lease_s: float = 120.0
    min_islands: int = 1
    error_feedback: bool = False
    """Islands carry what a delta lost in its encoding into the next delta of that fragment."""


class Outcome(Enum):
    """The syncer's answer to a push."""

    HELD = "held"
    """Complete and gathered into its round."""
    CARRIED = "carried"
    """Complete, its round was over; kept for the next round of that fragment."""
    REFUSED = "refused"
    """Not taken; the anchor is as it was before the push."""


class InGeneration(msgspec.Struct, frozen=True, tag=True):
    """What is said within one joining of an island, in either direction."""

    session: str
    generation: str


# -- Island to syncer --------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Rank 0 asks to join. Sent again with the layout when the syncer asks (`LayoutWanted`)."""

    island: int
    nonce: str
    """Random, made anew for each dial; `Welcome` repeats it, so that an answer to an earlier dial is told apart."""
    fingerprint: str
    host: str
    pid: int
    instance: str
    """Token of the island's run folder: the same token means a restart of the same job, not a second island."""
    step: int
    ranks: int
    """Owner ranks: ranks that own pieces and will say RankHello."""
    layout: Layout | None = None
    running: bool = False
    """The island has trained from a syncer's values before (a redial or a resumed record)."""


class RankHello(InGeneration, frozen=True):
    """An owner rank introduces its bulk link and its boxes. Repeated when its link drops, under the same generation."""

    token: str
    rank: int
    boxes: Annotated[tuple[Box, ...], msgspec.Meta(max_length=RANK_BOXES_MAX)]


class Heartbeat(InGeneration, frozen=True):
    """Rank 0 is alive at local step `step`."""

    step: int


class PushOffer(InGeneration, frozen=True):
    """Rank 0 offers what the island learned on one fragment; already captured on all ranks, not yet uploaded.

    `steps` and `tokens` are counted since the island last installed the fragment; 0 steps is an empty answer
    without upload.
    """

    push: str
    t: int
    attempt: int
    anchor: ValueName
    steps: int
    tokens: int
    capture_step: int


class Chunk(InGeneration, frozen=True):
    """One chunk of an upload, its encoded bytes in the payload frame. `checksum` is xxh3-64 of the payload."""

    upload: str
    rank: int
    index: int
    checksum: int


class Fetch(InGeneration, frozen=True):
    """A rank asks for chunks [first, first + count) of its stream of a published value: its credit."""

    rank: int
    name: ValueName
    first: int
    count: int
    exact: bool = False
    """In float32, whatever the encoding of published values: the final cut."""


class Fetched(InGeneration, frozen=True):
    """A rank has staged all its pieces of a published value; its pin may go."""

    rank: int
    name: ValueName


class Done(InGeneration, frozen=True):
    """The island reached its last local step and waits for the final cut."""

    step: int


class CutInstalled(InGeneration, frozen=True):
    """Every rank of the island installed the final cut."""


class Saved(InGeneration, frozen=True):
    """The island's last save is durable; it needs the syncer no more."""


class Leave(InGeneration, frozen=True):
    """The island ends before the finish."""

    reason: str


IslandMessage = (
    Hello
    | RankHello
    | Heartbeat
    | PushOffer
    | Chunk
    | Fetch
    | Fetched
    | Done
    | CutInstalled
    | Saved
    | Leave
    | AdminRequest
)

# -- Syncer to island --------------------------------------------------------------------------------------------------


class LayoutWanted(msgspec.Struct, frozen=True, tag=True):
    """The syncer does not know the layout behind the fingerprint: say Hello again with it."""

    session: str
    nonce: str


class Welcome(InGeneration, frozen=True):
    """The island may join: its owner ranks now say RankHello with `token`."""

    nonce: str
    token: str
    run: str
    """The run this syncer's state belongs to; empty before INIT."""
    contract: Contract
    plan: FragmentPlan
    values: tuple[ValueName, ...] = ()
    """The present value of each fragment; empty before INIT."""
    held: tuple[ValueName, ...] = ()
    """This island's anchors from which the syncer holds a delta."""
    held_floor: tuple[int, ...] = ()
    """Per fragment: anchors of versions below this are not remembered any more and count as held."""
    outrun: tuple[int, ...] = ()
    """Fragments of which work is held that this island did after the local step it joins with: an earlier life went on
    from the same checkpoint, and may have pushed what is in it from an anchor that the checkpoint does not know."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The syncer does not take the sender, or what it sent. `retry` says whether dialing again can help."""

    session: str
    nonce: str
    reason: str
    retry: bool = False


class RankWelcome(InGeneration, frozen=True):
    """The rank's bulk link is known."""

    rank: int
    values: tuple[ValueName, ...] = ()


class Joined(InGeneration, frozen=True):
    """The boxes of all owner ranks tile the layout: the island is a member."""


class InitWanted(InGeneration, frozen=True):
    """Island 0 provides the initial values: one upload per fragment, named here in fragment order."""

    uploads: tuple[str, ...]


class Pull(InGeneration, frozen=True):
    """The syncer asks for what the island learned on a fragment, for outer step `t`."""

    t: int
    fragment: int
    attempt: int


class PullClosed(InGeneration, frozen=True):
    """The round is over (or begins again as a higher attempt): an answer not yet offered is not wanted any more."""

    t: int
    fragment: int


class PushAnswer(InGeneration, frozen=True):
    """The fate of a push."""

    push: str
    outcome: Outcome
    reason: str = ""
    anchor_held: bool = False
    """Refused because the syncer already holds a delta from this anchor: the anchor stays spent."""


class Dropped(InGeneration, frozen=True, omit_defaults=True):
    """A push the syncer had held or was receiving is dropped; its anchor is released.

    Goes to the island's present generation, which may know the push by its anchor only.
    """

    push: str
    reason: str
    anchor: ValueName | None = None
    """The anchor that is released; None for an empty answer."""


class Published(InGeneration, frozen=True):
    """A fragment has a new present value. Goes to the control link and to every rank's bulk link."""

    name: ValueName
    run: str = ""
    """The run the value belongs to; begins with INIT, after the first islands were welcomed."""


class Window(InGeneration, frozen=True):
    """A rank may send the chunks [first, upto) of an upload of `fragment`; `first` is the first one missing."""

    upload: str
    fragment: int
    first: int
    upto: int


class Cancel(InGeneration, frozen=True):
    """An upload is not wanted any more."""

    upload: str
    reason: str


class Piece(InGeneration, frozen=True):
    """One chunk of a rank's stream of a published value, its bytes in the payload frame."""

    name: ValueName
    index: int
    checksum: int
    exact: bool = False
    """As in the Fetch that asked for it."""


class Superseded(InGeneration, frozen=True):
    """The value a rank fetches is gone; fetch the present one."""

    old: ValueName
    present: ValueName


class Paused(InGeneration, frozen=True):
    """No outer step can be taken: islands park at their next boundary until `PauseOver`."""

    reason: str
    missing: int


class PauseOver(InGeneration, frozen=True, tag="Resumed"):
    """Outer steps can be taken again. A run that goes on from a checkpoint is another thing; the tape tells of it."""


class HeartbeatReply(InGeneration, frozen=True):
    """The sender is a member in good standing; what the syncer waits for, in words."""

    members: int
    waiting_for: str = ""
    contributors: int = 0
    """Complete answers to the oldest open round."""
    paused: str = ""
    """Why the run is paused; empty while it is not."""


class Unknown(InGeneration, frozen=True):
    """The syncer does not know the sender's session or generation: join again."""

    reason: str


class Command(InGeneration, frozen=True):
    """An operator's order, relayed."""

    order: Order
    reason: str = ""


class BudgetReached(InGeneration, frozen=True):
    """The outer step budget is reached: the next boundary is the island's last."""

    t: int


class FinalCut(InGeneration, frozen=True):
    """The values with which every island ends, one per fragment."""

    values: tuple[ValueName, ...]


class Stopping(InGeneration, frozen=True):
    """The syncer ends; islands keep training and dial again."""

    reason: str


SyncerMessage = (
    LayoutWanted
    | Welcome
    | Refused
    | RankWelcome
    | Joined
    | InitWanted
    | Pull
    | PullClosed
    | PushAnswer
    | Dropped
    | Published
    | Window
    | Cancel
    | Piece
    | Superseded
    | Paused
    | PauseOver
    | HeartbeatReply
    | Unknown
    | Command
    | BudgetReached
    | FinalCut
    | Stopping
    | AdminReply
)
