"""Runs real trainers in tests quickly: one process imports torch and ms-swift once, and forks every rank of every job.

    with ForkServer(folder) as server:
        result = server.run(["--model", ...], nproc=2, timeout_s=60)
        job = server.start([...]); job.kill(0, signal.SIGKILL); result = job.wait(timeout_s=60)

Jobs may run side by side. What a rank prints goes to a file of its own. Not for use from several threads.
"""

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from swift_diloco.tools.quickstart.jobs.commands import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120.0  # importing ms-swift takes 6 to 15 s, several times that on a busy machine
CLOSE_TIMEOUT_S = 10.0
DEFAULT_TIMEOUT_S = 120.0
LOG_TAIL_BYTES = 4000

# Every library that would start threads on import is told not to, since a fork keeps only one; nothing asks a network.
SERVER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # of the jemalloc inside pyarrow
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True)
class RunResult:
    """How a job ended, one entry per rank; a rank killed by signal n has the return code -n."""

    returncodes: tuple[int, ...]
    logs: tuple[Path, ...]
    timed_out: bool
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.timed_out and all(code == 0 for code in self.returncodes)

    def text(self, rank: int = 0) -> str:
        """Everything that a rank has printed, stdout and stderr together."""
        return self.logs[rank].read_text(errors="replace")

    def check(self) -> Self:
        """Fail the test, with the ends of the logs, unless every rank ended well."""
        if not self.ok:
            tails = (
                f"--- rank {rank} ({log})\n{self.text(rank)[-LOG_TAIL_BYTES:]}" for rank, log in enumerate(self.logs)
            )
            why = f"timed out after {self.seconds:.0f} s" if self.timed_out else "failed"
            raise AssertionError(f"the job {why}; return codes {self.returncodes}\n" + "\n".join(tails))
        return self


@dataclass
class RunningJob:
    """A job that was started; its processes live until they end, wait() times out, or the server is closed."""

    server: "ForkServer"
    number: int
    logs: tuple[Path, ...]
    started_at: float = field(default_factory=time.monotonic)
    returncodes: dict[int, int] = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    fail_together: bool = True

    def poll(self) -> dict[int, int]:
        """The return codes of the ranks that have ended so far."""
        self.server.receive(0.0)
        return dict(self.returncodes)

    @property
    def finished(self) -> bool:
        return len(self.poll()) == len(self.logs)

    def kill(self, rank: int | None = None, number: int = signal.SIGKILL) -> None:
        """Send a signal to a rank and its helper processes, or to all ranks."""
        self.server.send({"op": "kill", "job": self.number, "rank": rank, "signal": int(number)})

    def text(self, rank: int = 0) -> str:
        """What a rank has printed until now."""
        log = self.logs[rank]
        return log.read_text(errors="replace") if log.exists() else ""

    def wait(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> RunResult:
        """Wait until all ranks have ended; what still runs after `timeout_s` is killed."""
        timed_out = not self._wait_until(time.monotonic() + timeout_s)
        if timed_out:
            self.kill()
            if not self._wait_until(time.monotonic() + CLOSE_TIMEOUT_S):
                raise RuntimeError(f"job {self.number} did not end after SIGKILL; ended: {self.returncodes}")
        codes = tuple(self.returncodes[rank] for rank in range(len(self.logs)))
        return RunResult(codes, self.logs, timed_out, time.monotonic() - self.started_at)

    def ended(self, rank: int, returncode: int) -> None:
        """Called by the server. As with torchrun, the other ranks are ended when one has failed."""
        self.returncodes[rank] = returncode
        if returncode != 0 and self.fail_together and len(self.returncodes) < len(self.logs):
            self.kill(None, signal.SIGTERM)

    def _wait_until(self, deadline: float) -> bool:
        while len(self.returncodes) < len(self.logs):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.server.receive(left)
        return True


class ForkServer:
    """The client's end; the process is started by the first job, and after close() by the next one."""

    def __init__(self, folder: Path, family: str = "megatron") -> None:
        """`family`: what is imported, the trainer of an ms-swift command, `megatron` (on the CPU platform) or `swift`,
        or the `fake` islands."""
        self.folder = folder
        self.family = family
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._buffer = b""
        self._jobs: dict[int, RunningJob] = {}
        self._numbers = itertools.count(1)
        self._ready = False

    def start(
        self,
        argv: Sequence[str],
        nproc: int = 1,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        entry: str = "sft",
    ) -> RunningJob:
        """Start `nproc` ranks of `megatron sft ARGV` (or of the family's `entry`, see forkserver_process);
        return at once."""
        self._ensure_started()
        number = next(self._numbers)
        logs = tuple(self.folder / f"job-{number}-rank-{rank}.log" for rank in range(nproc))
        job = RunningJob(self, number, logs)
        self._jobs[number] = job
        port = free_port()
        request = {
            "op": "start", "job": number, "entry": entry, "argv": list(argv), "cwd": str(cwd or self.folder),
            "logs": [str(log) for log in logs],
            "ranks": [{**rank_environment(rank, nproc, port), **(env or {})} for rank in range(nproc)],
        }  # fmt: skip
        self.send(request)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not job.pids:
            self.receive(max(deadline - time.monotonic(), 0.0))
        return job

    def run(
        self,
        argv: Sequence[str],
        nproc: int = 1,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> RunResult:
        """Start a job and wait for it."""
        return self.start(argv, nproc, env=env, cwd=cwd).wait(timeout_s)

    def call(self, function: str, argv: Sequence[str] = (), timeout_s: float = DEFAULT_TIMEOUT_S) -> RunResult:
        """Run `module:function` in one process that has the trainer imported."""
        return self.start(argv, entry=function).wait(timeout_s)

    def close(self) -> None:
        """End the process and every rank that still runs. It may be called twice."""
        if self._channel is not None:
            self._channel.close()  # the process sees the end of the stream, kills its ranks and ends
            self._channel, self._buffer, self._ready = None, b"", False
        if self._process is not None:
            try:
                self._process.wait(CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its ranks end with it: they asked the kernel for that
                self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def send(self, request: dict[str, Any]) -> None:
        assert self._channel is not None, "the fork server is closed"
        self._channel.sendall(json.dumps(request).encode() + b"\n")

    def receive(self, timeout_s: float) -> None:
        """Handle the events that are there, waiting up to `timeout_s` for the first."""
        assert self._channel is not None, "the fork server is closed"
        readable, _, _ = select.select([self._channel], [], [], timeout_s)
        if not readable:
            return
        received = self._channel.recv(1 << 16)
        if not received:
            raise RuntimeError(
                f"the fork server ended; its output:\n{self._server_log().read_text()[-LOG_TAIL_BYTES:]}"
            )
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))

    def _handle(self, event: dict[str, Any]) -> None:
        if event["event"] == "ready":
            self._ready = True
        elif event["event"] == "started":
            self._jobs[event["job"]].pids = tuple(event["pids"])
        else:
            self._jobs[event["job"]].ended(event["rank"], event["returncode"])

    def _ensure_started(self) -> None:
        if self._process is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **SERVER_ENVIRONMENT, **cache_environment(self.folder / "cache")}
        environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        with theirs, self._server_log().open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forkserver.forkserver_process", str(theirs.fileno()), self.family],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                cwd=self.folder,
            )  # fmt: skip
        self._channel = ours
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready:
            if time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"the fork server was not ready after {START_TIMEOUT_S:.0f} s")
            self.receive(max(deadline - time.monotonic(), 0.0))

    def _server_log(self) -> Path:
        return self.folder / "server.log"


def rank_environment(rank: int, nproc: int, port: int) -> dict[str, str]:
    """What torchrun sets for a rank of a job on one node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def cache_environment(folder: Path) -> dict[str, str]:
    """Caches of Hugging Face and ModelScope below `folder`: nothing is read from or left in the user's own."""
    return {"HF_HOME": str(folder / "hf"), "MODELSCOPE_CACHE": str(folder / "modelscope")}
