"""A real syncer process for tests, and what its tape must always satisfy."""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from swift_diloco.core.files.tape_file import read_tape
from swift_diloco.core.formats.tape_lines import Commit, SomeLine, TapeLine
from swift_diloco.tools.bench import processes
from tests.fakes.island import FakeIsland, Job

END_S = 30.0
"""Everything ends by itself within this long after the last island."""

FAST = ("--sync-every-steps", "3", "--fragments", "3", "--final-linger-s", "5", "--reconnect-grace-s", "0.5")
"""Settings for runs of a dozen steps."""


class SyncerProcess(processes.SyncerProcess):
    """A syncer whose log is shown where a test fails, and whose tape can be asked. The process never outlives it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        super().__exit__(kind, error, trace)
        if kind is not None:
            print(self.text())

    def tape(self) -> list[TapeLine]:
        """The event tape."""
        return whole_tape(self.folder / "tape.jsonl")

    def events(self, kind: type[SomeLine]) -> list[SomeLine]:
        return [line for line in self.tape() if isinstance(line, kind)]

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self) -> int:
        """The exit code, within END_S."""
        return self.process.wait(END_S)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


def whole_tape(path: Path) -> list[TapeLine]:
    """The lines of a tape, none of them torn."""
    lines = [line for _, line in read_tape(path)]
    whole = [line for line in lines if line is not None]
    assert len(whole) == len(lines), "a line is torn"
    return whole


def run_islands(jobs: Sequence[Job], timeout_s: float = 60.0) -> list[FakeIsland]:
    """Run fake islands side by side in this process; raises what any of them raised."""
    islands = [FakeIsland(job) for job in jobs]
    run_side_by_side(islands, timeout_s)
    for island in islands:
        if island.errors:
            raise island.errors[0]
    return islands


def run_side_by_side(islands: Sequence[FakeIsland], timeout_s: float = 60.0) -> None:
    """Run fake islands to their ends; what went wrong is in their `errors`."""
    threads = [threading.Thread(target=_without_raising(island), daemon=True) for island in islands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
        assert not thread.is_alive(), "an island did not end in time"


def in_background(islands: Sequence[FakeIsland]) -> threading.Thread:
    """Start fake islands and go on. Whoever cares for their end joins the thread; what went wrong is in their `errors`.

    Islands that a test leaves behind (their syncer was stopped for good) raise in no other test.
    """

    def run() -> None:
        threads = [threading.Thread(target=_without_raising(island), daemon=True) for island in islands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _without_raising(island: FakeIsland) -> Callable[[], None]:
    def run() -> None:
        try:
            island.run()
        except BaseException as error:
            if error not in island.errors:
                island.errors.append(error)

    return run


def times_said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """In how many of its lines the log has a text."""
    return sum(text in record.getMessage() for record in caplog.records)


def check_tape(tape: Sequence[TapeLine], *, min_islands: int = 1) -> None:
    """Commits are contiguous and in order; versions follow; nothing is merged twice; never fewer than min_islands."""
    commits = [line for line in tape if isinstance(line, Commit)]
    assert [line.t for line in commits] == list(range(1, len(commits) + 1))
    versions: dict[int, int] = defaultdict(int)
    merged: set[tuple[int, int, str]] = set()
    for line in commits:
        if line.void:
            continue
        assert line.version == line.t > versions[line.fragment]
        assert len(line.contributions) >= min_islands, line
        for part in line.contributions:
            if part.steps == 0:
                continue
            key = (line.fragment, part.island, f"{part.generation}:{part.base_version}")
            assert key not in merged, f"merged twice: {key}"
            merged.add(key)
        versions[line.fragment] = line.version
