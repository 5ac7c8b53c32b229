"""The processes around a bench: the syncer, as users start it, and what it holds of memory.

Invariant: no process outlives its `with` block.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from swift_diloco.core.errors import DilocoError

START_S = 60.0
"""A syncer that has no address by then has failed; compiling the kernels for the first time takes some 20 s."""

STOP_S = 5.0
LAST_WORDS_CHARACTERS = 1000

MIB = 1 << 20

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""What torch and its like read at their import."""


class SyncerProcess:
    """`python -m syncer` on loopback, with a run folder."""

    module = "syncer"

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.flags = flags
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", self.module, "--run-dir", str(self.folder), "--bind", "tcp://127.0.0.1:0"]
        with (self.folder / "syncer.log").open("ab") as log:
            self.process = subprocess.Popen([*command, *self.flags], stdout=log, stderr=log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self.process)

    def text(self) -> str:
        """What it logged."""
        return (self.folder / "syncer.log").read_text(encoding="utf-8")

    def _last_words(self) -> str:
        return self.text().strip()[-LAST_WORDS_CHARACTERS:]

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


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="swift-diloco-bench-") as folder:
        yield Path(folder)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that this one started, and wait for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
