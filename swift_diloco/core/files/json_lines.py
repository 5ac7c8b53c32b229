"""Reading files that another process is still writing: JSON lines, and a JSON file that is replaced as a whole.

It knows no field names. Invariant: a line is given out once, and only when its end is there.
"""

import json
from pathlib import Path
from typing import Any

READ_BYTES_MAX = 64 * 2**20
"""What one look at a file may read: far above what a run of minutes writes."""

Row = dict[str, Any]


class JsonLines:
    """The objects of a growing JSON-lines file, in order, each given out once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> list[Row]:
        """The objects whose lines ended since the last call; none while the file does not exist."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(READ_BYTES_MAX)
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        rows = [json.loads(line) for line in complete.splitlines() if line.strip()]
        return [row for row in rows if isinstance(row, dict)]


def read_status(path: Path) -> Row:
    """A status file that its owner replaces atomically; {} while there is none."""
    try:
        status = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return status if isinstance(status, dict) else {}
