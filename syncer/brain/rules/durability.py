"""When a checkpoint is written, and what waits for it.

Three modes. *Plain*: every N outer steps; commits wait until the checkpoint is on the disk, everything else goes on.
*Background*: only a commit that replaces a fragment which is not written yet waits, and that fragment is written next.
*Durable publish*: every value is on the disk before anybody hears of it, the initial ones too.

A write that fails stops nothing but what must be durable first: it is told loudly and tried again.

Knows no files. Invariant: one checkpoint is being written at a time.
"""

from __future__ import annotations

from enum import Enum

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.manifest import SavedState
from swift_diloco.core.formats.messages import ValueName
from syncer.brain.memory.pushes import release_leaving
from syncer.brain.memory.round import Round
from syncer.brain.memory.snapshot import initial_state, saved_state, state_after
from syncer.brain.memory.state import State
from syncer.events import CheckpointFailed, CheckpointWritten, FragmentWritten, WriteCheckpoint, WriteFirst

CHECKPOINT = ("checkpoint", "")

RETRY_S = 30.0
"""Time between two attempts to write: long enough for a person to make room, short enough to lose little."""


class Safety(Enum):
    """Whether the present state is on the disk."""

    SAFE = "safe"
    """It is, or nothing has to be."""
    WRITING = "writing"
    """A checkpoint is being written, this one or an older one."""
    UNWRITTEN = "unwritten"
    """It is not."""
    FAILED = "failed"
    """It could not be written."""


class Durability:
    """Decides about checkpoints. Questions change nothing; who waits asks again when a checkpoint has ended."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._number = 0
        self._running: SavedState | None = None
        self._unwritten: set[int] = set()
        self._hastened: set[int] = set()
        self._last: SavedState | None = None
        """What the newest checkpoint holds."""
        self._failed: SavedState | None = None
        """What the last attempt could not write; None again when it is time for the next."""
        self._begun_at = 0
        """Outer step after which the last checkpoint was begun."""
        self._on_disk: list[frozenset[str]] = []
        """The carried pushes of the checkpoints that are kept, oldest first."""
        self._doubtful: frozenset[str] = frozenset()
        """Those of a checkpoint that could not be written: what is left of it nobody knows."""
        self._initial: SavedState | None = None
        """Initial values that nobody has heard of yet."""

    @property
    def enabled(self) -> bool:
        """Whether there is a folder to write to."""
        return bool(self._state.settings.checkpoint_path)

    @property
    def durable(self) -> bool:
        """Whether a value must be on the disk before it is published."""
        return self.enabled and self._state.settings.durable_publish

    @property
    def on_start(self) -> bool:
        """Whether a checkpoint comes before the first round. With durable publication one has come already."""
        return self.enabled and not self.durable and self._state.settings.checkpoint_on_start

    @property
    def stuck(self) -> bool:
        """Whether outer steps wait for a disk that takes nothing."""
        return self.durable and self._failed is not None

    @property
    def _background(self) -> bool:
        return self._state.settings.background_checkpoint and not self.durable

    # -- Questions ----------------------------------------------------------------------------------------------------

    def blocks(self, closed: Round) -> bool:
        """Whether a commit has to wait."""
        if closed.void_reason or not self.enabled:
            return False
        if self.durable:
            name = self._name(closed)
            return self._last is None or self._last.step != closed.t or name not in self._last.values
        return self._running is not None and (not self._background or closed.fragment in self._unwritten)

    def safety(self, *, final: bool) -> Safety:
        """Whether the present state is on the disk."""
        if not self.enabled or self._state.phase.before_values:
            return Safety.SAFE
        if self._running is not None:
            return Safety.WRITING
        now = saved_state(self._state, final=final)
        if now == self._last:
            return Safety.SAFE
        return Safety.FAILED if now == self._failed else Safety.UNWRITTEN

    @property
    def initial_is_safe(self) -> bool:
        """Whether the run may begin with the initial values given to `write_initial`, or none were."""
        return self._initial is None

    @staticmethod
    def _name(closed: Round) -> ValueName:
        assert closed.result is not None
        return ValueName(closed.fragment, closed.t, closed.result.digest)

    # -- Occasions ----------------------------------------------------------------------------------------------------

    def write_initial(self, names: tuple[ValueName, ...], run: str) -> None:
        """The initial values are there; nobody hears of them before they are on the disk."""
        self._initial = initial_state(self._state, names, run)
        self._begin(self._initial)

    def restored(self, saved: SavedState) -> None:
        """The run goes on from a checkpoint: the newest one."""
        self._last, self._begun_at = saved, saved.step
        self._keep(saved)

    def hasten(self, closed: Round) -> None:
        """Begin or hasten what a commit waits for."""
        if self.durable:
            if self._running is None and self._failed is None:
                self._begin(state_after(self._state, closed, self._name(closed)))
        elif self._background and closed.fragment not in self._hastened:
            self._hastened.add(closed.fragment)
            self._state.do(WriteFirst(closed.fragment))

    def write(self, *, final: bool) -> None:
        """Write the present state."""
        self._begin(saved_state(self._state, final=final))

    def not_final(self) -> None:
        """Training goes on after all: a checkpoint that says otherwise is replaced."""
        if any(saved is not None and saved.final for saved in (self._last, self._running)):
            self._state.checkpoint_wanted = True

    def consider(self) -> None:
        """Begin a checkpoint if it is time to."""
        state = self._state
        if not self.enabled or self._running is not None or self._failed is not None or state.phase.before_values:
            return
        periodic = not self.durable and state.committed - self._begun_at >= state.settings.checkpoint_every
        if state.starting or state.checkpoint_wanted or periodic:
            self._begin(saved_state(state, final=bool(state.final)))

    def _begin(self, saved: SavedState) -> None:
        state = self._state
        state.checkpoint_wanted = False
        self._number += 1
        self._running, self._begun_at, self._failed = saved, saved.step, None
        old = set(self._last.values) if self._last is not None else set()
        self._unwritten = {name.fragment for name in saved.values if name not in old}
        self._hastened = set()
        self._note_durable()
        state.saving = f"the checkpoint of outer step {saved.step}"
        state.do(WriteCheckpoint(self._number, saved))

    # -- Ends ---------------------------------------------------------------------------------------------------------

    def fragment_written(self, event: FragmentWritten) -> None:
        """A fragment may be replaced."""
        if self._running is None or event.number != self._number:
            number, what = event.number, "none is" if self._running is None else f"number {self._number} is"
            self._state.log("debug", f"FragmentWritten of checkpoint {number}, but {what} being written")
            return
        self._unwritten.discard(event.fragment)

    def written(self, event: CheckpointWritten) -> None:
        """The checkpoint is there."""
        saved = self._end(event.number)
        state, self._last = self._state, saved
        self._doubtful = frozenset()
        state.saved_step, state.save_fault = saved.step, ""
        state.tape(tape_lines.Checkpoint(t=saved.step, final=saved.final))
        state.log("info", f"the checkpoint of outer step {saved.step} is written{' (final)' if saved.final else ''}")
        self._initial = None
        self._keep(saved)

    def failed(self, event: CheckpointFailed) -> None:
        """It could not be written."""
        saved = self._end(event.number)
        state, self._failed = self._state, saved
        self._doubtful |= _pushes(saved)
        self._note_durable()
        state.save_fault = event.reason
        state.checkpoint_wanted = not self.durable
        state.deadlines.set(CHECKPOINT, state.now + RETRY_S)
        state.tape(tape_lines.CheckpointFailed(t=saved.step, reason=event.reason))
        what = "outer steps wait for it" if self.durable else "the run goes on, but a crash now loses what came since"
        where = state.settings.checkpoint_path
        state.log(
            "error",
            f"THE CHECKPOINT of outer step {saved.step} COULD NOT BE WRITTEN to {where}: {event.reason}; {what}; "
            f"trying again in {RETRY_S:g} s",
        )

    def _keep(self, saved: SavedState) -> None:
        """A checkpoint is on the disk, and those that were kept longest are not."""
        self._on_disk = [*self._on_disk, _pushes(saved)][-self._state.settings.checkpoint_keep :]
        self._note_durable()
        release_leaving(self._state)

    def _note_durable(self) -> None:
        """What a crash from now on may bring back."""
        running = _pushes(self._running) if self._running is not None else frozenset()
        self._state.durable_pushes = running.union(self._doubtful, *self._on_disk)

    def _end(self, number: int) -> SavedState:
        saved = self._running
        assert saved is not None and number == self._number, "a checkpoint ended that was not being written"
        self._running, self._unwritten = None, set()
        self._state.saving, self._state.starting = "", False
        return saved

    def time_out(self) -> None:
        """The time to try again has come."""
        self._failed = None
        if self._initial is not None and self._running is None:
            self._begin(self._initial)


def _pushes(saved: SavedState) -> frozenset[str]:
    return frozenset(push.push for push in saved.carried)
