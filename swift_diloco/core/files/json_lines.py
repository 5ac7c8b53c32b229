"""Reading files that another process is still writing: JSON lines, and the status, which is replaced as a whole.

Invariant: a line is given out once, and only when its end is there.
"""

import json
from pathlib import Path
from typing import Any

from swift_diloco.core.formats.status import Status, decode

READ_BYTES_MAX = 64 * 2**20
"""What one look at a file may read: far above what a run of minutes writes."""

Row = dict[str, Any]


class JsonLines:
    """The objects of a growing JSON-lines file, in order, each given out once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def raw(self) -> list[bytes]:
        """The lines that ended since the last call; none while the file does not exist."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(READ_BYTES_MAX)
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return complete.splitlines()

    def new(self) -> list[Row]:
        """The same as objects."""
        rows = [json.loads(line) for line in self.raw() if line.strip()]
        return [row for row in rows if isinstance(row, dict)]


def read_status(path: Path) -> Status | None:
    """A status file that its owner replaces atomically; None while there is none. Raises `StatusError`."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None
