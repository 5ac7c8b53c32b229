"""What is going on, for the one who waits: loss per job, versions, who waits for whom.

It reads the jobs' logs and the syncer's status file, and talks to nobody. Invariant: what is shown is what was read;
a file that is not there yet shows as a job that is starting.
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swift_diloco.charts.svg import binary_bytes
from swift_diloco.core.files.json_lines import JsonLines, read_status
from swift_diloco.core.formats.status import Status
from swift_diloco.tools.quickstart.folder import QuickstartFolder
from swift_diloco.tools.quickstart.result.losses import LOG_NAME, Point, parse_points

PLAIN_EVERY_S = 5.0
"""Time between lines where there is no terminal to draw on."""

BAR_CELLS = 24

STARTING, TRAINING, WAITING, SAVING, FINISHED = "starting", "training", "waiting", "saving", "finished"


@dataclass(frozen=True)
class JobView:
    """One job as seen now."""

    name: str
    state: str
    step: int
    steps: int
    loss: float | None


@dataclass(frozen=True)
class Snapshot:
    """Everything that is shown at one moment."""

    elapsed_s: float
    jobs: tuple[JobView, ...]
    syncer: Status | None


def waiting_islands(status: Status) -> frozenset[int]:
    """Ids of the islands that stand still at a boundary."""
    return frozenset(member.island for member in status.members if member.waiting)


class Watch:
    """Follows the files of a set of jobs and makes snapshots of them."""

    def __init__(
        self, folder: QuickstartFolder, jobs: Sequence[str], steps: int, running: Callable[[], Iterable[str]]
    ) -> None:
        self._folder = folder
        self._jobs = {name: JsonLines(folder.output(name) / LOG_NAME) for name in jobs}
        self._last: dict[str, Point] = {}
        self._steps = steps
        self._running = running

    def snapshot(self, elapsed_s: float, *, with_syncer: bool) -> Snapshot:
        """What the files say now."""
        status = read_status(self._folder.status) if with_syncer else None
        waiting = {f"island-{island}" for island in (waiting_islands(status) if status is not None else ())}
        running = set(self._running())
        jobs = tuple(self._job(name, name in running, name in waiting) for name in self._jobs)
        return Snapshot(elapsed_s, jobs, status)

    def _job(self, name: str, running: bool, waiting: bool) -> JobView:
        for point in parse_points(self._jobs[name].new()):
            self._last[name] = point
        last = self._last.get(name)
        if last is None:
            return JobView(name, STARTING, 0, self._steps, None)
        return JobView(name, self._state(last, running, waiting), last.step, self._steps, last.loss)

    def _state(self, last: Point, running: bool, waiting: bool) -> str:
        if not running:
            return FINISHED
        if waiting:
            return WAITING
        return SAVING if last.step >= self._steps else TRAINING


def _syncer_words(syncer: Status) -> str:
    versions = " ".join(map(str, syncer.versions))
    words = f"syncer {syncer.phase}, t={syncer.t}, versions {versions or 'none'}"
    words += f", {binary_bytes(syncer.bytes_pushed)} pushed, {binary_bytes(syncer.bytes_fetched)} fetched"
    return f"{words}; waiting for {syncer.waiting_for}" if syncer.waiting_for else words


def plain_line(snapshot: Snapshot) -> str:
    """The snapshot as one line, for logs."""
    parts = []
    for job in snapshot.jobs:
        loss = "" if job.loss is None else f" loss {job.loss:.3f}"
        parts.append(f"{job.name} {job.state} {job.step}/{job.steps}{loss}")
    if snapshot.syncer:
        parts.append(_syncer_words(snapshot.syncer))
    return f"{snapshot.elapsed_s:5.0f} s  " + " | ".join(parts)


def drawing(snapshot: Snapshot) -> RenderableType:
    """The snapshot as a small table for a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for job in snapshot.jobs:
        colour = {TRAINING: "green", WAITING: "yellow", SAVING: "cyan", FINISHED: "cyan"}.get(job.state, "dim")
        table.add_row(
            Text(job.name, style="bold"),
            Text(job.state, style=colour),
            ProgressBar(total=job.steps, completed=job.step, width=BAR_CELLS),
            Text(f"{job.step}/{job.steps}"),
            Text("" if job.loss is None else f"loss {job.loss:.3f}"),
        )
    words = _syncer_words(snapshot.syncer) if snapshot.syncer else ""
    return Group(table, Text(f"{snapshot.elapsed_s:.0f} s  {words}", style="dim"))


class Display:
    """Shows snapshots: redrawn in place on a terminal, a line every few seconds elsewhere."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(file=sys.stdout)
        self._clock = clock
        self._live: Live | None = None
        self._shown_at: float | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Bring the display up to date."""
        if self._live is not None:
            self._live.update(drawing(snapshot), refresh=True)
            return
        now = self._clock()
        if self._shown_at is None or now - self._shown_at >= PLAIN_EVERY_S:
            self._shown_at = now
            self._console.print(plain_line(snapshot), soft_wrap=True, highlight=False, markup=False)
