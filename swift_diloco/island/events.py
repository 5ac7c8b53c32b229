"""What happens to an island's session (events, past tense) and what it wants done (effects, imperative).

Every rank sees the same events in the same order; rank 0 alone talks on the control link, so effects that say so are
performed there only. An effect carries all that its performer needs: who performs it asks nobody. Neither events nor
effects carry tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from swift_diloco.core.formats.messages import Contract, IslandMessage, SyncerMessage, ValueName
from swift_diloco.core.layout.fragments import FragmentPlan


class Align(Enum):
    """How an install treats what is in the model."""

    OVERWRITE = "overwrite"
    """The global value replaces the local one."""
    BLEND = "blend"
    """alpha · local + (1 − alpha) · global."""
    SHIFT = "shift"
    """Global + (local − old anchor): local progress since the anchor is kept."""
    CARRY = "carry"
    """Global + (local − what was captured): progress since the capture is kept, what was pushed is in the
    global value."""
    KEEP = "keep"
    """The value is the anchor of a resumed island: local values stay bit for bit, only the anchor is set."""
    ANCHOR = "anchor"
    """The value is the anchor the island holds: written again without a download."""


# ---------------------------------------------------------------------------------------------------------------------
# Events
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started:
    """The island wants to join."""


@dataclass(frozen=True)
class Heard:
    """Rank 0's control link received a message."""

    message: SyncerMessage


@dataclass(frozen=True)
class LinkLost:
    """Rank 0's control link broke."""


@dataclass(frozen=True)
class StepEnded:
    """A local step is over; `trained` says whether the optimizer updated, `tokens` counts its supervised tokens."""

    step: int
    trained: bool
    tokens: int


@dataclass(frozen=True)
class BoundaryReached:
    """All ranks stand at a step boundary; `staged` are the wanted values that every rank has in full."""

    staged: tuple[ValueName, ...] = ()


@dataclass(frozen=True)
class StartEnded:
    """The wait for initial values is over; training begins, or ends before it began."""


@dataclass(frozen=True)
class LastStepReached:
    """The trainer's last step is behind: only the finish is left."""


@dataclass(frozen=True)
class SaveFinished:
    """The trainer's last save is durable; the processes end."""


@dataclass(frozen=True)
class Left:
    """The processes of the island end before the run does: it failed, or was told to."""

    reason: str


Event = Started | Heard | LinkLost | StartEnded | StepEnded | BoundaryReached | LastStepReached | SaveFinished | Left

# ---------------------------------------------------------------------------------------------------------------------
# Effects
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dial:
    """Rank 0 says Hello; with the layout when the syncer asked for it."""

    nonce: str
    with_layout: bool
    step: int
    """The local step it stands at."""
    running: bool
    """It stands on global values: those of a record, or of this life."""


@dataclass(frozen=True)
class Bind:
    """The fragments are known."""

    plan: FragmentPlan


@dataclass(frozen=True)
class Introduce:
    """Every owner rank says RankHello on its bulk link. Staged values and uploads of an earlier generation are void."""

    session: str
    generation: str
    token: str
    contract: Contract
    held: tuple[ValueName, ...]
    """The anchors whose values are here, by the names they bear now: they need no download."""
    spent: frozenset[int]
    """Fragments from whose anchor the syncer holds, or may hold, a delta."""


@dataclass(frozen=True)
class Tell:
    """Rank 0 sends a control message."""

    message: IslandMessage


@dataclass(frozen=True)
class ProvideInit:
    """Upload the anchors (present values where there is none) as initial values: one upload per fragment."""

    uploads: tuple[str, ...]


@dataclass(frozen=True)
class NameAnchor:
    """The anchor values held for this fragment now bear this name; nothing is written."""

    name: ValueName


@dataclass(frozen=True)
class Install:
    """Write a staged value (or the anchor) into the model on all ranks; the anchor becomes the raw value."""

    name: ValueName
    align: Align
    alpha: float = 0.0


@dataclass(frozen=True)
class FetchExactly:
    """Fetch these values in float32, also those that are held in the encoding of published values."""

    names: tuple[ValueName, ...]


@dataclass(frozen=True)
class Capture:
    """Snapshot local minus anchor of a fragment on all ranks and make it ready for upload."""

    push: str
    fragment: int
    steps: int
    """Local steps since its anchor was installed."""
    keep: bool = False
    """The local values are kept, for an install that carries the progress made since."""


@dataclass(frozen=True)
class ForgetUpload:
    """Free the capture behind a push. `arrived`: the syncer has all of it, so nothing is left on its way."""

    push: str
    arrived: bool


@dataclass(frozen=True)
class StopTraining:
    """This boundary is the last: end training in the trainer's own way. Not `final`: without waiting for a cut."""

    reason: str
    final: bool = True


@dataclass(frozen=True)
class SeekSyncer:
    """The syncer went without a word: whoever started it may look whether it lives (rank 0)."""


@dataclass(frozen=True)
class SaveNow:
    """Have the trainer write a checkpoint at this boundary."""

    reason: str


@dataclass(frozen=True)
class Abort:
    """An operator ends the island at once; the same error on all ranks."""

    reason: str


@dataclass(frozen=True)
class Fail:
    """The island cannot go on; the same error on all ranks."""

    reason: str


@dataclass(frozen=True)
class Log:
    """Tell people (rank 0)."""

    level: str
    text: str


Deed = Install | Bind | Introduce | ProvideInit | NameAnchor | FetchExactly | Capture | ForgetUpload
"""What each rank does with its anchors, its part of the model and its bulk link. It may fail on one of them."""

Word = Dial | Tell | Log
"""What rank 0 says, to the syncer or to people: only when the deeds before it succeeded on every rank."""

TrainingEffect = StopTraining | SeekSyncer | SaveNow | Abort | Fail
"""What ends or interrupts the training, the same on all ranks."""

Effect = Deed | Word | TrainingEffect


def sorted_out(effects: Sequence[Effect]) -> tuple[list[Deed], list[Word], list[TrainingEffect]]:
    """What is to be done, what is to be said after it, and what follows for the training: each in its order, as both
    shells go about it. Raises AssertionError for what is none of them, and where something comes before an install."""
    installs_of(effects)
    deeds: list[Deed] = []
    words: list[Word] = []
    ends: list[TrainingEffect] = []
    for effect in effects:
        if isinstance(effect, Deed):
            deeds.append(effect)
        elif isinstance(effect, Word):
            words.append(effect)
        else:
            assert isinstance(effect, TrainingEffect), f"no shell knows the effect {effect}"
            ends.append(effect)
    return deeds, words, ends


def installs_of(effects: Sequence[Effect]) -> list[Install]:
    """What is to be installed. Raises AssertionError unless it comes before all else."""
    installs = [effect for effect in effects if isinstance(effect, Install)]
    assert list(effects[: len(installs)]) == installs, f"something comes before an install: {effects}"
    return installs
