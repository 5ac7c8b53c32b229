"""The syncer's disk in a simulated world: checkpoints that take time, fail when it is full, and outlive a crash whole.

Performs `WriteCheckpoint` and `WriteFirst`. A fragment's value is read at the moment it is written: a commit that does
not wait for it takes the value away, which raises. A checkpoint that a crash interrupts is none: its manifest would
have come last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from swift_diloco.core.formats.manifest import SavedState
from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import Layout
from swift_diloco.simulate.worlds.truth import History, Learned
from swift_diloco.simulate.worlds.world import World
from syncer.events import CheckpointFailed, CheckpointWritten, Event, FragmentWritten

SLOW_FACTOR = 20.0
"""How many times longer a slow disk takes."""


class Owner(Protocol):
    """What the disk needs of the syncer's process."""

    def value_of(self, name: ValueName) -> float:
        """A value that is present, or the result of a merge that waits for its commit."""
        ...

    def delta_of(self, push: str) -> Learned:
        """A push that is held."""
        ...

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something if the process still lives then."""
        ...

    def take(self, event: Event) -> None:
        """Tell the brain."""
        ...


@dataclass(frozen=True)
class Image:
    """One whole checkpoint."""

    state: SavedState
    values: dict[ValueName, float]
    carried: dict[str, Learned]
    layout: Layout
    plan: FragmentPlan


@dataclass(eq=False)
class Disk:
    """The disk of one simulated syncer."""

    world: World
    history: History
    newest: Image | None = None
    full: int = 0
    """Checkpoints that fail before one succeeds again."""
    slow_until: float = 0.0
    _queue: list[ValueName] = field(default_factory=list)

    def fill(self) -> None:
        """The next checkpoint fails."""
        self.full += 1

    def slow_down(self, seconds: float) -> None:
        """Every file takes longer for a while."""
        self.slow_until = self.world.now + seconds

    def write(self, owner: Owner, number: int, state: SavedState, shape: tuple[Layout, FragmentPlan]) -> None:
        """Begin a checkpoint."""
        known = dict(self.newest.values) if self.newest is not None else {}
        values = {name: known[name] for name in state.values if name in known}
        carried = {each.push: owner.delta_of(each.push) for each in state.carried}
        image = Image(state, values, carried, *shape)
        self._queue = [name for name in state.values if name not in known]
        self._next(owner, number, image)

    def write_first(self, fragment: int) -> None:
        """This fragment before the others."""
        self._queue.sort(key=lambda name: name.fragment != fragment)

    def _seconds(self) -> float:
        slow = SLOW_FACTOR if self.slow_until > self.world.now else 1.0
        return self.world.transfer() * slow

    def _next(self, owner: Owner, number: int, image: Image) -> None:
        """The next file, or the manifest after the last one."""
        owner.later(self._seconds(), lambda: self._written(owner, number, image))

    def _written(self, owner: Owner, number: int, image: Image) -> None:
        if self.full:
            self.full -= 1
            self.world.note("disk_full")
            owner.take(CheckpointFailed(number, "no space left on device"))
            return
        if not self._queue:
            self.newest = image
            self.history.durable = image.state.step
            owner.take(CheckpointWritten(number))
            return
        name = self._queue.pop(0)
        image.values[name] = owner.value_of(name)
        self._next(owner, number, image)
        owner.take(FragmentWritten(number, name.fragment))
