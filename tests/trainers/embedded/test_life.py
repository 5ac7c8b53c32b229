"""An embedded syncer is told to stop by those who mean it, and by nobody else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.trainers.embedded.life import OwnSyncer
from swift_diloco.trainers.embedded.process import EmbeddedSyncer


class FakeSyncer(EmbeddedSyncer):
    """In place of a process: whether it lives, and how often it was told to stop."""

    def __init__(self, *, lives: bool = False) -> None:
        super().__init__(Path("nowhere"), IslandSettings())
        self.living = lives
        self.stopped = 0

    def lives(self) -> bool:
        return self.living

    def start_or_find(self, again_at: str = "") -> str:
        self.living = True
        return "tcp://127.0.0.1:1"

    def stop(self, within_s: float = 0.0) -> bool:
        self.living = False
        self.stopped += 1
        return True


@pytest.fixture(autouse=True)
def restored_signal() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupt_stops_the_syncer_and_then_the_trainer() -> None:
    syncer = FakeSyncer()
    assert OwnSyncer(syncer).address() == "tcp://127.0.0.1:1"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert syncer.stopped == 1


@pytest.mark.parametrize(("was_there", "stopped"), [(False, 1), (True, 0)])
def test_a_failed_joining_stops_the_syncer_that_was_started_for_it_and_no_other(was_there: bool, stopped: int) -> None:
    syncer = FakeSyncer(lives=was_there)
    own = OwnSyncer(syncer)
    own.address()
    own.island_failed_to_join()
    assert syncer.stopped == stopped


def test_island_that_failed_before_it_asked_for_an_address_stops_nothing() -> None:
    syncer = FakeSyncer()
    OwnSyncer(syncer).island_failed_to_join()
    assert syncer.stopped == 0
