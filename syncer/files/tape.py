"""The event tape: one JSON object a line, appended at once, for audits and tools.

It adds the wall-clock time; what a line says is `tape_lines`' matter. A line is whole, or it is the last one of a
process that was killed. A disk that is full does not stop the syncer: what could not be written is kept in memory, in
order, and written with the next line.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from swift_diloco.core.errors import UserError
from swift_diloco.core.formats.tape_lines import FORMAT, Opened, TapeLine, encode

log = logging.getLogger("syncer")

UNWRITTEN_BYTES_MAX = 256 << 20
"""Most that is kept in memory for a disk that is full (bytes): a week of one-second rounds."""

COMPLAINT_INTERVAL_S = 30.0
"""Least time between two log lines about a disk that is full."""


class Tape:
    """Appends to one file. Open it with `with`."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._unwritten = b""
        self._writing = threading.Lock()
        """Held while a line is on its way, so that `sync` in another thread does not take it for one that failed."""
        self._complaint_due = float("-inf")

    def __enter__(self) -> Tape:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = _is_torn(self.path)
            self._file = self.path.open("ab", buffering=0)
            if torn:
                self._file.write(b"\n")
        except OSError as error:
            raise UserError(f"cannot append to the event tape {self.path}: {error.strerror}") from error
        self.write(Opened(format=FORMAT))
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()

    def write(self, line: TapeLine) -> None:
        """Append one event."""
        text = encode(line, self._clock())
        with self._writing:
            self._unwritten += text
            try:
                while self._unwritten:
                    self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
            except OSError as error:
                if len(self._unwritten) > UNWRITTEN_BYTES_MAX:
                    raise
                self._complain(error)

    def sync(self) -> None:
        """Have everything that was written on the disk. Any thread. `OSError` when that cannot be."""
        with self._writing:
            failed = bool(self._unwritten)
        if failed:
            raise OSError(errno.ENOSPC, "the event tape could not be written", str(self.path))
        os.fsync(self._file.fileno())

    def _complain(self, error: OSError) -> None:
        now = time.monotonic()
        if now >= self._complaint_due:
            self._complaint_due = now + COMPLAINT_INTERVAL_S
            kept = len(self._unwritten)
            log.error("THE EVENT TAPE %s CANNOT BE WRITTEN (%s): %d bytes wait in memory", self.path, error, kept)


def _is_torn(path: Path) -> bool:
    """Whether a file ends in the middle of a line: its writer was killed there."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
