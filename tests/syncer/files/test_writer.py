"""The thread that writes checkpoints: what it tells, in which order it writes, and how it fails."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift_diloco.core.files import checkpoint_files
from swift_diloco.core.files.checkpoint_files import MANIFEST, read_newest
from syncer.events import CheckpointFailed, CheckpointWritten, Event, FragmentWritten
from syncer.files.store import Store
from syncer.files.writer import Job, Writer
from tests.syncer.saves import (
    LAYOUT,
    PLAN,
    name_of,
    part_of,
    state_of,
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Told:
    """A writer and what it reported."""

    def __init__(self, folder: Path) -> None:
        self.events: queue.SimpleQueue[Event | Exception] = queue.SimpleQueue()
        self.store = Store(folder, 2)
        self.manifests_seen: list[bool] = []
        self.writer = Writer(
            self.store, self.events.put, lambda: self.manifests_seen.append((folder / MANIFEST).exists())
        )
        self.writer.adopt(LAYOUT, PLAN)
        self.writer.start()

    def begin(self, number: int, versions: tuple[int, int]) -> Job:
        parts = {f: part_of(f, version) for f, version in enumerate(versions)}
        job = Job(number, state_of(versions), parts)
        self.writer.begin(job)
        return job

    def heard(self, count: int) -> list[Event | Exception]:
        return [self.events.get(timeout=10) for _ in range(count)]


def test_the_writer_tells_of_each_fragment_and_of_the_end(tmp_path: Path) -> None:
    told = Told(tmp_path)
    job = told.begin(1, (1, 2))
    assert told.heard(3) == [FragmentWritten(1, 0), FragmentWritten(1, 1), CheckpointWritten(1)]
    assert job.parts == {}, "a fragment's buffers are free as soon as it is written"
    assert told.manifests_seen == [False]
    assert read_newest(tmp_path).state.step == 2


def test_a_fragment_about_to_be_replaced_is_written_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, may_go = Told(tmp_path), threading.Event()
    shape = Store.write_shape

    def held_up(self: Store, *given: object) -> object:
        may_go.wait(10)
        return shape(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "write_shape", held_up)
    told.begin(1, (1, 2))
    told.writer.hasten(1)
    may_go.set()
    assert told.heard(3) == [FragmentWritten(1, 1), FragmentWritten(1, 0), CheckpointWritten(1)]
    assert read_newest(tmp_path).state.values == (name_of(0, 1), name_of(1, 2))


def test_a_full_disk_is_told_and_the_next_attempt_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(tmp_path)
    blocks = checkpoint_files.tensor_blocks
    full = [True]

    def no_room(*given: object) -> Iterator[bytes | memoryview]:
        for number, block in enumerate(blocks(*given)):  # type: ignore[arg-type]
            if full[0] and number == 1:
                raise OSError(28, "No space left on device", str(tmp_path))
            yield block

    monkeypatch.setattr("syncer.files.store.tensor_blocks", no_room)
    told.begin(1, (1, 2))
    assert told.heard(1) == [CheckpointFailed(1, f"No space left on device: {tmp_path}")]
    assert not [name for name in names(tmp_path) if name.startswith((".tmp-", "fragment-"))]
    full[0] = False
    told.begin(2, (1, 2))
    assert told.heard(3)[-1] == CheckpointWritten(2)
    assert read_newest(tmp_path).state.step == 2


def test_a_fault_of_our_own_is_reported_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(tmp_path)

    def broken(*given: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Store, "write_manifest", broken)
    told.begin(1, (1, 2))
    (*_, error) = told.heard(3)
    assert isinstance(error, KeyError)
