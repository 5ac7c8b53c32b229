"""The event tape: one JSON object a line, appended and flushed at once, for audits and tools.

It adds the wall-clock time (`time`, seconds since 1970) and the event's name; what the other fields mean is the
business of whoever writes them. A line is whole, or it is the last one of a process that was killed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from swift_diloco.core.errors import UserError


class Tape:
    """Appends to one file. Open it with `with`."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    def __enter__(self) -> Tape:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = _is_torn(self.path)
            self._file = self.path.open("a", encoding="utf-8")
            if torn:
                self._file.write("\n")
        except OSError as error:
            raise UserError(f"cannot append to the event tape {self.path}: {error.strerror}") from error
        return self

    def sync(self) -> None:
        """Have everything that was written on the disk. Any thread."""
        os.fsync(self._file.fileno())

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()

    def write(self, event: str, fields: Mapping[str, object]) -> None:
        """Append one event. `fields` must be plain JSON values."""
        line = {"time": round(self._clock(), 6), "event": event, **fields}
        self._file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
        self._file.flush()


def _is_torn(path: Path) -> bool:
    """Whether a file ends in the middle of a line: its writer was killed there."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
