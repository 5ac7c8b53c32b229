"""An embedded syncer is told to stop by those who mean it, and by nobody else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.trainers.embedded import life as own_syncer
from swift_diloco.trainers.embedded import process as embedded
from swift_diloco.trainers.embedded.life import OwnSyncer


class Syncers:
    """In place of processes: which run folders have a syncer, and who was told to stop."""

    def __init__(self) -> None:
        self.living: set[Path] = set()
        self.stopped: list[Path] = []

    def start_or_find(self, folder: Path, settings: IslandSettings) -> str:
        self.living.add(folder)
        return f"tcp://127.0.0.1:{len(self.living)}"

    def stop(self, folder: Path, within_s: float) -> bool:
        self.living.discard(folder)
        self.stopped.append(folder)
        return True

    def living_pid(self, folder: Path) -> int | None:
        return 17 if folder in self.living else None


@pytest.fixture
def syncers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Syncers]:
    before = signal.getsignal(signal.SIGINT)
    fake = Syncers()
    monkeypatch.setattr(embedded, "start_or_find", fake.start_or_find)
    monkeypatch.setattr(embedded, "stop", fake.stop)
    monkeypatch.setattr(own_syncer, "living_pid", fake.living_pid)
    yield fake
    signal.signal(signal.SIGINT, before)


def test_interrupt_stops_the_syncer_and_then_the_trainer(syncers: Syncers, tmp_path: Path) -> None:
    assert OwnSyncer(tmp_path, IslandSettings()).address() == "tcp://127.0.0.1:1"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert syncers.stopped == [tmp_path]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert syncers.stopped == [tmp_path]


def test_syncer_started_for_an_island_that_could_not_join_is_stopped(syncers: Syncers, tmp_path: Path) -> None:
    own = OwnSyncer(tmp_path, IslandSettings())
    own.address()
    own.island_failed_to_join()
    assert syncers.stopped == [tmp_path]


def test_syncer_that_was_found_has_other_work(syncers: Syncers, tmp_path: Path) -> None:
    syncers.living.add(tmp_path)
    own = OwnSyncer(tmp_path, IslandSettings())
    own.address()
    own.island_failed_to_join()
    assert syncers.stopped == []


def test_island_that_failed_before_it_asked_for_an_address_stops_nothing(syncers: Syncers, tmp_path: Path) -> None:
    OwnSyncer(tmp_path, IslandSettings()).island_failed_to_join()
    assert syncers.stopped == []
