"""The processes around a bench: the syncer, as users start it, and what it holds of memory.

Invariant: no process outlives its `with` block.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType

from swift_diloco.core.errors import DilocoError

START_S = 60.0
"""A syncer that has no address by then has failed; compiling the kernels for the first time takes some 20 s."""

STOP_S = 5.0
LAST_WORDS_CHARACTERS = 1000

SAMPLE_S = 0.05
"""Time between two looks at a process's memory: a buffer of 64 MiB is not filled faster."""

MIB = 1 << 20

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""What torch and its like read at their import."""


class SyncerProcess:
    """`python -m syncer` on loopback, in a folder that is gone afterwards."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._folder: tempfile.TemporaryDirectory[str]
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> SyncerProcess:
        self._folder = tempfile.TemporaryDirectory(prefix="swift-diloco-bench-")
        self.folder = Path(self._folder.name)
        command = [sys.executable, "-m", "syncer", "--run-dir", str(self.folder), "--bind", "tcp://127.0.0.1:0"]
        with (self.folder / "syncer.log").open("wb") as log:
            self.process = subprocess.Popen([*command, *self._flags], stdout=log, stderr=log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self.process)
        self._folder.cleanup()

    def _last_words(self) -> str:
        return (self.folder / "syncer.log").read_text(encoding="utf-8").strip()[-LAST_WORDS_CHARACTERS:]

    @property
    def address(self) -> str:
        """Where it listens; waits until it does."""
        deadline = time.monotonic() + START_S
        path = self.folder / "address.json"
        while not path.exists():
            if self.process.poll() is not None:
                raise DilocoError(f"the syncer ended with code {self.process.poll()}: {self._last_words()}")
            if time.monotonic() > deadline:
                raise DilocoError(f"the syncer did not listen within {START_S:g} s: {self._last_words()}")
            time.sleep(0.02)
        return str(json.loads(path.read_text(encoding="utf-8"))["address"])


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that this one started, and wait for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


class ProcessWatch:
    """What a process uses: its largest resident memory, of its whole life and since the last `reset` (bytes), and the
    processor time it has had."""

    def __init__(self, pid: int) -> None:
        self.peak = self.whole_peak = 0
        self._proc = Path(f"/proc/{pid}")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="process watch", daemon=True)

    def __enter__(self) -> ProcessWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def reset(self) -> int:
        """Begin a new stretch; the peak of the one before."""
        peak, self.peak = self.peak, 0
        return peak

    def processor_s(self) -> float:
        """Processor time of all its threads so far."""
        after_name = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")

    def now(self) -> int:
        """Resident memory; 0 when the process is gone."""
        try:
            return int((self._proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (FileNotFoundError, ProcessLookupError):
            return 0

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            size = self.now()
            self.peak, self.whole_peak = max(self.peak, size), max(self.whole_peak, size)
