"""The states of an island's session: which may follow which, and what is heard in each; and what it is told of
its own job.

The tables are the only place that says so: a session goes from state to state through `follow` alone, takes a message
only where `refusal` is silent, and an event only where it is not `misplaced`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from swift_diloco.core.formats.messages import (
    BudgetReached,
    Command,
    Dropped,
    FinalCut,
    HeartbeatReply,
    InitWanted,
    Joined,
    LayoutWanted,
    Paused,
    PauseOver,
    Published,
    Pull,
    PullClosed,
    PushAnswer,
    Refused,
    Stopping,
    SyncerMessage,
    Unknown,
    Welcome,
)
from swift_diloco.island.events import (
    BoundaryReached,
    Event,
    Heard,
    LastStepReached,
    Left,
    LinkLost,
    SaveFinished,
    Started,
    StartEnded,
    StepEnded,
)

SomeStage = TypeVar("SomeStage", bound=Enum)


class Membership(Enum):
    """Where the island stands with the syncer."""

    APART = "apart"
    """Not started yet: no Hello was said."""
    DIALING = "dialing"
    """Said Hello, not welcomed yet."""
    JOINING = "joining"
    """Welcomed; its ranks introduce themselves."""
    MEMBER = "member"
    """All boxes tile the layout: pulls may come."""


MEMBERSHIPS: Mapping[Membership, frozenset[Membership]] = {
    Membership.APART: frozenset({Membership.DIALING}),
    Membership.DIALING: frozenset({Membership.DIALING, Membership.JOINING}),
    Membership.JOINING: frozenset({Membership.DIALING, Membership.MEMBER}),
    Membership.MEMBER: frozenset({Membership.DIALING}),
}
"""What may follow. A Hello is said again while none is answered, and whenever a generation ends."""


class TrainingStage(Enum):
    """Where the island's training stands."""

    WAITING_FOR_CUT = "waiting for the initial values"
    """No step is trained before every fragment stands on a value of this syncer."""
    TRAINING = "training"
    """Steps are trained, unless the run is paused."""
    DONE = "done, waiting for the final cut"
    """The last step is behind; pulls are still answered."""
    FINISHED = "finished"
    """The final cut is in the model; nothing is offered or wanted any more."""


STAGES: Mapping[TrainingStage, frozenset[TrainingStage]] = {
    TrainingStage.WAITING_FOR_CUT: frozenset({TrainingStage.TRAINING, TrainingStage.DONE}),
    TrainingStage.TRAINING: frozenset({TrainingStage.DONE}),
    TrainingStage.DONE: frozenset({TrainingStage.FINISHED}),
    TrainingStage.FINISHED: frozenset(),
}
"""What may follow. A job that was resumed at its last step may be told to stop before it has a value: it is done."""

_DIALING = frozenset({Membership.DIALING})
_JOINING = frozenset({Membership.JOINING})
_MEMBER = frozenset({Membership.MEMBER})
_WELCOMED = _JOINING | _MEMBER
_ANY = _DIALING | _WELCOMED

HEARD: Mapping[type[SyncerMessage], frozenset[Membership]] = {
    LayoutWanted: _DIALING,
    Welcome: _DIALING,
    Refused: _ANY,
    Unknown: _ANY,
    Joined: _JOINING,
    InitWanted: _MEMBER,
    Pull: _MEMBER,
    PullClosed: _WELCOMED,
    PushAnswer: _WELCOMED,
    Dropped: _WELCOMED,
    Published: _WELCOMED,
    Paused: _WELCOMED,
    PauseOver: _WELCOMED,
    HeartbeatReply: _WELCOMED,
    Command: _WELCOMED,
    BudgetReached: _WELCOMED,
    FinalCut: _WELCOMED,
    Stopping: _WELCOMED,
}
"""Which messages the control link may bring, and when. All others are for bulk links or operators."""

_ANYWHERE = frozenset(Membership)
_STEPPING = frozenset({TrainingStage.WAITING_FOR_CUT, TrainingStage.TRAINING})
_ANY_STAGE = frozenset(TrainingStage)

HAPPENS: Mapping[type[Event], tuple[frozenset[Membership], frozenset[TrainingStage]]] = {
    Started: (frozenset({Membership.APART}), _STEPPING),
    Heard: (_ANYWHERE, _ANY_STAGE),
    LinkLost: (_ANYWHERE, _ANY_STAGE),
    StartEnded: (_ANY, _STEPPING),
    # The trainer cannot call off a step that was begun: a job that is told to stop while it waits may train one.
    StepEnded: (_ANY, _STEPPING),
    BoundaryReached: (_ANY, _ANY_STAGE),
    LastStepReached: (_ANY, _STEPPING),
    SaveFinished: (_ANY, _ANY_STAGE),
    Left: (_ANYWHERE, _ANY_STAGE),
}
"""Where the island's own events can happen. Elsewhere the shell has broken their order."""

NOT_HEARD_FINISHED = frozenset({Pull, Published, InitWanted})
"""A finished island has nothing to answer, installs nothing and begins nothing."""


def follow(table: Mapping[SomeStage, frozenset[SomeStage]], old: SomeStage, new: SomeStage, event: str) -> SomeStage:
    """The new state. Raises AssertionError where the table does not have it."""
    if new not in table[old]:
        allowed = ", ".join(sorted(map(str, table[old]))) or "nothing"
        raise AssertionError(f"{event} took the island from {old} to {new}; only {allowed} may follow")
    return new


def misplaced(kind: type[Event], membership: Membership, stage: TrainingStage) -> str:
    """Why an event of this kind cannot happen now; empty: it can."""
    if kind not in HAPPENS:
        return f"{kind.__name__} is no event of an island"
    memberships, stages = HAPPENS[kind]
    if membership not in memberships:
        return f"{kind.__name__} cannot happen to an island that is {membership.value}"
    if stage not in stages:
        return f"{kind.__name__} cannot happen to an island that is {stage.value}"
    return ""


def refusal(kind: type[SyncerMessage], membership: Membership, stage: TrainingStage) -> str:
    """Why a message of this kind is not taken now; empty: it is."""
    if kind not in HEARD:
        return f"{kind.__name__} from the syncer is not taken: the control link carries none"
    if membership not in HEARD[kind]:
        return f"{kind.__name__} from the syncer is not taken by an island that is {membership.value}"
    if stage is TrainingStage.FINISHED and kind in NOT_HEARD_FINISHED:
        return f"{kind.__name__} from the syncer is not taken by an island that is {stage.value}"
    return ""


@dataclass(frozen=True)
class Profile:
    """What a session knows of its own job."""

    island: int
    life: str
    """A random token of this process, the same on all ranks of the island."""
    step: int = 0
    """The local step it starts from."""
    initial_cut_timeout_s: float = 3600.0
    """How long a start waits for global values; 0 trains at once and installs them at boundaries."""
    init_probe_s: float = 1800.0
    """How long a syncer without state must ask an island that has global values before it gets them."""
    heartbeats: bool = True
    """Heartbeats are sent, so a syncer from which nothing comes is silent."""
