"""Start processes, watch them, and leave none behind.

It knows commands, logs and exit codes, nothing of training. Invariants: every process that a `Supervisor` started, and
everything those started in turn, carries its mark in the environment; after `stop_all` none of them is alive.
"""

import itertools
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from swift_diloco.tools.quickstart.errors import QuickstartError

MARK = "SWIFT_DILOCO_QUICKSTART"
"""Environment variable by which a run knows its own, also those that detached into sessions of their own.

Not YETO_DILOCO_…: an island hands none of those on to the syncer that it starts."""

JOB_MARK = "SWIFT_DILOCO_QUICKSTART_JOB"
"""Environment variable by which a run knows the processes of one of its jobs."""

POLL_S = 0.2
"""How often processes are looked at."""

TERM_S = 10.0
"""How long a process may take to obey SIGTERM before it is killed."""

KILL_S = 5.0
"""How long the kernel may take to remove a killed process."""

TAIL_LINES = 20
TAIL_BYTES_MAX = 16 * 1024
"""What is read and shown of a failed process's log."""

LAUNCHER_REPORT = re.compile(r"^E\d{4} .*torch/distributed/elastic")
"""Where torchrun begins to report that a rank failed: two screens that push the rank's own last words out of sight."""

PROGRESS_BAR = re.compile(r"^[\w ]+: +\d+%\|")
"""A line that tqdm draws."""


@dataclass(frozen=True)
class JobCommand:
    """One process to run."""

    name: str
    argv: tuple[str, ...]
    log: Path
    """Where its output goes, both streams."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What is set for it in the environment."""
    base: Mapping[str, str] = field(default_factory=dict)
    """The rest of its environment."""

    def typed(self) -> list[str]:
        """The command as a user can type it: `env NAME=value … program …`."""
        return ["env", *(f"{name}={value}" for name, value in self.variables.items()), *self.argv]


class ProcessFailed(QuickstartError):
    """A process ended badly; the message ends with the last lines of its log."""


def tail(log: Path) -> str:
    """The last lines of a log that the process itself wrote, indented."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - TAIL_BYTES_MAX))
        lines = file.read().decode("utf-8", "replace").replace("\r", "\n").splitlines()
    own = itertools.takewhile(lambda line: not LAUNCHER_REPORT.match(line), lines)
    kept = [line.rstrip() for line in own if line.strip() and not PROGRESS_BAR.match(line)]
    return "\n".join(f"    {line}" for line in kept[-TAIL_LINES:]) or "    (the log is empty)"


def marked_processes(token: str, mark: str = MARK) -> dict[int, str]:
    """Living processes, by id, whose environment carries the mark (Linux; elsewhere none is found)."""
    wanted = f"{mark}={token}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found[int(folder.name)] = b" ".join(words).decode("utf-8", "replace").strip()
        except OSError:
            continue  # it ended meanwhile, or belongs to somebody else: not ours either way
    found.pop(os.getpid(), None)
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


class Supervisor:
    """Runs commands, each in a process group of its own with a log of its own."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, JobCommand] = {}
        self._logs: list[IO[bytes]] = []

    def start(self, command: JobCommand) -> None:
        """Start one process; its output, both streams, goes to its log."""
        command.log.parent.mkdir(parents=True, exist_ok=True)
        log = command.log.open("wb")
        self._logs.append(log)
        self._commands[command.name] = command
        self._processes[command.name] = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**command.base, **command.variables, MARK: self._token, JOB_MARK: self._job(command.name)},
            start_new_session=True,
        )

    def _job(self, name: str) -> str:
        return f"{self._token}/{name}"

    def kill(self, name: str) -> None:
        """End a job's processes at once, as a crash would, and forget the job; it may be started again."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(KILL_S)
        deadline = time.monotonic() + KILL_S
        while left := marked_processes(self._job(name), JOB_MARK):
            for pid in left:
                _signal(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise QuickstartError(f"could not kill these processes of {name}: {left}")

    def exit_codes(self) -> dict[str, int | None]:
        """Exit code per process, None while it runs."""
        return {name: process.poll() for name, process in self._processes.items()}

    def running(self) -> list[str]:
        """The names of the processes that have not ended."""
        return [name for name, code in self.exit_codes().items() if code is None]

    def check(self) -> None:
        """Raise if a process ended with anything but 0."""
        for name, code in self.exit_codes().items():
            if code not in (None, 0):
                log = self._commands[name].log
                how = (
                    f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
                )
                raise ProcessFailed(f"{name} {how}; the last lines of {log}:\n{tail(log)}")

    def wait_until(self, done: Callable[[], bool], *, limit_s: float, what: str, tick: Callable[[], None]) -> None:
        """Wait for `done`, watching all processes; `tick` is called on every look."""
        deadline = time.monotonic() + limit_s
        while True:
            self.check()
            tick()
            if done():
                return
            if time.monotonic() > deadline:
                logs = ", ".join(str(self._commands[name].log) for name in self.running()) or "none is running"
                raise ProcessFailed(f"{what} took more than {limit_s:.0f} s; see the logs of what still runs: {logs}")
            time.sleep(POLL_S)

    def wait(self, *, limit_s: float, what: str, tick: Callable[[], None]) -> None:
        """Wait until every process has ended with exit code 0."""
        self.wait_until(lambda: not self.running(), limit_s=limit_s, what=what, tick=tick)
        self.check()

    def leftovers(self, *, limit_s: float) -> dict[int, str]:
        """What is alive of this run after up to `limit_s` for it to end by itself: {} is the right answer."""
        return self._gone_within(limit_s)

    def stop_all(self) -> None:
        """End everything that this run started: ask, wait, kill."""
        try:
            if self._alive():
                self._end_alive()
        finally:
            for log in self._logs:
                log.close()

    def _end_alive(self) -> None:
        for number, limit_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            for pid in self._alive():
                _signal(pid, number)
            left = self._gone_within(limit_s)
            if not left:
                return
        raise QuickstartError(f"could not end these processes: {left}; end them by hand")

    def _gone_within(self, limit_s: float) -> dict[int, str]:
        deadline = time.monotonic() + limit_s
        while (left := self._alive()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return left

    def _alive(self) -> dict[int, str]:
        # poll() first: it collects the exit code, so that an ended child is not seen as a living (zombie) process.
        own = {
            process.pid: " ".join(self._commands[name].argv)
            for name, process in self._processes.items()
            if process.poll() is None
        }
        return {**own, **marked_processes(self._token)}
