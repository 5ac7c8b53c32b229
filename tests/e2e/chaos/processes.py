"""The processes of a run as the driver sees them: alive or not, what they say, and how to end and start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from swift_diloco.core.files.json_lines import JsonLines
from swift_diloco.core.files.run_folder import living_address
from swift_diloco.core.formats.tape_lines import TapeLine, decode_all
from tests.e2e.chaos.scenario import SYNCER, TARGETS, How, Scenario
from tests.fakes.island import Job
from tests.forkserver.forkserver import ForkServer, RunningJob

RECONNECT_GRACE_S = 0.3
"""How long rounds wait for an island whose process died: a link that was only cut is back in a tenth of it here, a
process that was killed is not back in ten times of it."""

LINGER_S = 6.0
"""Longer than a killed island stays away; a syncer that resumes a finished run cannot know who has saved since."""
ADDRESS_S = 60.0
FINISH_S = 60.0

SAVE_S = 0.1
"""How long the islands take to write a checkpoint: a driver on a busy machine must be able to strike in between."""

SIGNALS: dict[How, signal.Signals] = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}


class News(msgspec.Struct, frozen=True):
    """Something that a process said it did."""

    source: int
    what: str
    number: int
    """The island's step or the syncer's outer step."""


class IslandHost:
    """One fake island over all its lives."""

    def __init__(self, scenario: Scenario, island: int, folder: Path, server: ForkServer) -> None:
        self.scenario, self.number = scenario, island
        self.folder = folder / f"island-{island}"
        self.folder.mkdir(parents=True)
        self.server = server
        self.process: RunningJob | None = None
        """None: it does not live."""
        self.done = False
        self.step = 0
        self.last = ""
        """The last thing that it said it begins."""
        self.life = 0
        self.said: list[dict[str, Any]] = []
        self._logs: list[Path] = []
        self._lines = JsonLines(self.folder / "said-0")

    def start(self, address: str) -> None:
        """A life, from the newest checkpoint. What it says is in a file of its own: a kill may tear the last line."""
        s, n = self.scenario, self.number
        self.life += 1
        self.last = ""
        said = self.folder / f"said-{self.life}"
        self._lines = JsonLines(said)
        job = Job(
            address,
            island=n,
            ranks=s.ranks[n],
            steps=s.steps,
            target=TARGETS[n],
            lr=0.1,
            step_s=s.step_s * s.slowness[n],
            elements=s.elements,
            instance="chaos",
            heartbeat_s=0.5,
            finish_timeout_s=FINISH_S,
            out=str(self.folder / "out"),
            save_every=s.save_every,
            save_s=SAVE_S,
            save_anchors=s.save_anchors,
            said=str(said),
        )
        self.process = self.server.start([msgspec.json.encode(job).decode()], entry="tests.fakes.island:main")
        self._logs += self.process.logs

    def ended(self) -> int | None:
        """The exit code of a life that has ended since the last call; -n: by signal n."""
        code = self.process.poll().get(0) if self.process is not None else None
        if code is not None:
            self.process = None
        return code

    def news(self) -> list[News]:
        rows = self._lines.new()
        for row in rows:
            row["life"] = self.life
            self.step = int(row.get("step", self.step))
            self.last = row.get("event", self.last) if row.get("event") not in ("push", "install") else self.last
        self.said += rows
        return [News(self.number, row.get("event", "step"), row["step"]) for row in rows if "step" in row]

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pids[0], number)

    @property
    def result(self) -> dict[str, Any]:
        """What it said at its good end."""
        return next(row for row in reversed(self.said) if "digest" in row)

    def log(self) -> str:
        return "".join(path.read_text() for path in self._logs)


class SyncerHost:
    """The syncer over all its lives, at one address and in one run folder."""

    number = SYNCER
    last = ""

    def __init__(self, scenario: Scenario, folder: Path, *, checkpoints: bool, linger_s: float = LINGER_S) -> None:
        self.folder = folder / "syncer"
        self.folder.mkdir(parents=True)
        self.address = "tcp://127.0.0.1:0"
        self.done = False
        self.life = 0
        self.tape: list[TapeLine] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._flags = [*_flags(scenario), "--final-linger-s", str(linger_s)]
        self._checkpoints = checkpoints
        if checkpoints:
            self._flags += ["--checkpoint-path", str(self.folder / "checkpoint"), "--checkpoint-on-start"]
            self._flags += ["--checkpoint-every", str(scenario.checkpoint_every)]
            self._flags += ["--durable-publish"] if scenario.durable else ["--background-checkpoint"]
        self._lines = JsonLines(self.folder / "tape.jsonl")

    def start(self) -> None:
        """A life; all but the first resume. Waits until it listens, for its address is the islands'."""
        command = [sys.executable, "-m", "syncer", "--run-dir", str(self.folder), "--bind", self.address, *self._flags]
        if self.life and self._checkpoints:
            command.append("--resume")
        self.life += 1
        with (self.folder / "log").open("ab") as log:
            environ = {**os.environ, "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
        deadline = time.monotonic() + ADDRESS_S
        while self.life == 1 and (address := living_address(self.folder)) is None:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.01)
        if self.life == 1:
            assert address is not None
            self.address = address

    def news(self) -> list[News]:
        lines = [line for _, line in decode_all(self._lines.raw()) if line is not None]
        self.tape += lines
        return [News(SYNCER, _event(line), getattr(line, "t", getattr(line, "version", 0))) for line in lines]

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        return (self.folder / "log").read_text()


def _event(line: TapeLine) -> str:
    return str(line.__struct_config__.tag)


def _flags(scenario: Scenario) -> list[str]:
    values: dict[str, object] = {
        "sync-every-steps": 3,
        "fragments": 3,
        "expected-islands": len(scenario.ranks),
        "min-islands": scenario.min_islands,
        "quorum": scenario.quorum,
        "align": scenario.align,
        "reconnect-grace-s": RECONNECT_GRACE_S,
        "island-lease-s": scenario.lease_s,
        "shutdown-timeout-s": 2,
    }
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]
