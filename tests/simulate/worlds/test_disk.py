"""The disk of a simulated syncer: what is written when, and what a crash or a full disk leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from swift_diloco.core.formats.manifest import CarriedPush, SavedState
from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.simulate.worlds.disk import SLOW_FACTOR, Disk, Image
from swift_diloco.simulate.worlds.truth import History, Learned
from swift_diloco.simulate.worlds.world import World
from syncer.events import CheckpointFailed, CheckpointWritten, Event, FragmentWritten

LAYOUT = make_layout([TensorSpec("a", (2,), "avg"), TensorSpec("b", (2,), "avg")])
SHAPE = (LAYOUT, plan_fragments(LAYOUT, 2, "binpack"))
LATE = Learned(0.5, frozenset({(0, "life", 1)}))


def value(fragment: int, version: int) -> ValueName:
    return ValueName(fragment, version, f"d{fragment}.{version}")


def state(step: int, *values: ValueName, carried: tuple[CarriedPush, ...] = ()) -> SavedState:
    return SavedState("run", step, LAYOUT.fingerprint, values, tuple((name,) for name in values), carried=carried)


@dataclass
class Process:
    """The syncer whose disk it is."""

    world: World
    values: dict[ValueName, float]
    told: list[tuple[float, Event]] = field(default_factory=list)
    lives: bool = True

    def value_of(self, name: ValueName) -> float:
        return self.values[name]

    def delta_of(self, push: str) -> Learned:
        assert push == "late"
        return LATE

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self.world.after(seconds, lambda: action() if self.lives else None)

    def take(self, event: Event) -> None:
        self.told.append((self.world.now, event))

    @property
    def events(self) -> list[Event]:
        return [event for _, event in self.told]


@pytest.fixture
def disk() -> Disk:
    return Disk(World(1, delay_s=0.1, transfer_s=1.0), History())


@pytest.fixture
def process(disk: Disk) -> Process:
    return Process(disk.world, {value(0, 0): 1.0, value(1, 0): 2.0, value(0, 1): 3.0})


def run(disk: Disk, limit_s: float = 1000.0) -> None:
    disk.world.run(lambda: False, limit_s)


def test_checkpoint_is_one_when_its_last_fragment_and_then_its_manifest_are_written(
    disk: Disk, process: Process
) -> None:
    first = state(0, value(0, 0), value(1, 0))
    disk.write(process, 1, first, SHAPE)
    disk.world.run(lambda: len(process.told) == 2, 1000.0)
    assert (process.events, disk.newest) == ([FragmentWritten(1, 0), FragmentWritten(1, 1)], None)
    run(disk)
    assert process.events[2:] == [CheckpointWritten(1)]
    assert disk.newest == Image(first, {value(0, 0): 1.0, value(1, 0): 2.0}, {}, *SHAPE)


def test_only_what_changed_is_written_and_what_is_carried_is_kept(disk: Disk, process: Process) -> None:
    disk.write(process, 1, state(0, value(0, 0), value(1, 0)), SHAPE)
    run(disk)
    process.told.clear()
    late = CarriedPush(
        push="late",
        island=0,
        generation="g",
        anchor=value(1, 0),
        steps=3,
        tokens=30,
        capture_step=4,
        weight=300.0,
        fragment=1,
        t=1,
        payload_bytes=16,
    )
    disk.write(process, 2, state(1, value(0, 1), value(1, 0), carried=(late,)), SHAPE)
    run(disk)
    assert process.events == [FragmentWritten(2, 0), CheckpointWritten(2)]
    assert disk.newest is not None
    assert disk.newest.values == {value(0, 1): 3.0, value(1, 0): 2.0} and disk.newest.carried == {"late": LATE}
    assert disk.history.durable == 1


def test_fragment_that_is_about_to_be_replaced_is_written_first(disk: Disk, process: Process) -> None:
    disk.write(process, 1, state(0, value(0, 0), value(1, 0)), SHAPE)
    disk.write_first(1)
    run(disk)
    assert process.events == [FragmentWritten(1, 1), FragmentWritten(1, 0), CheckpointWritten(1)]


def test_value_that_is_gone_before_it_is_written_is_a_bug(disk: Disk, process: Process) -> None:
    disk.write(process, 1, state(0, value(0, 0), value(1, 0)), SHAPE)
    del process.values[value(1, 0)]
    with pytest.raises(KeyError):
        run(disk)


def test_full_disk_fails_so_many_checkpoints_and_leaves_the_one_before(disk: Disk, process: Process) -> None:
    disk.write(process, 1, state(0, value(0, 0), value(1, 0)), SHAPE)
    run(disk)
    before = disk.newest
    disk.fill()
    disk.write(process, 2, state(1, value(0, 1), value(1, 0)), SHAPE)
    run(disk)
    assert process.events[2:] == [CheckpointWritten(1), CheckpointFailed(2, "no space left on device")]
    assert disk.newest is before and disk.world.fired == {"disk_full": 1}
    disk.write(process, 3, state(1, value(0, 1), value(1, 0)), SHAPE)
    run(disk)
    assert process.events[4:] == [FragmentWritten(3, 0), CheckpointWritten(3)]


def test_crash_in_the_middle_leaves_no_checkpoint(disk: Disk, process: Process) -> None:
    disk.write(process, 1, state(0, value(0, 0), value(1, 0)), SHAPE)
    disk.world.run(lambda: len(process.told) == 1, 1000.0)
    process.lives = False
    run(disk)
    assert process.events == [FragmentWritten(1, 0)] and disk.newest is None


def test_slow_disk_takes_longer_for_its_time() -> None:
    times = []
    for slow_s in (0.0, 1e9):
        disk = Disk(World(1, delay_s=0.1, transfer_s=1.0), History())
        disk.slow_down(slow_s)
        process = Process(disk.world, {value(0, 0): 1.0, value(1, 0): 2.0})
        disk.write(process, 1, state(0, value(0, 0), value(1, 0)), SHAPE)
        run(disk)
        times.append(process.told[-1][0])
    assert times[1] == pytest.approx(SLOW_FACTOR * times[0])
