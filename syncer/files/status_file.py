"""`status.json` in the run folder: what the syncer does now, for people and tools, rewritten whole at most once a
second. A disk that is full leaves the old one and is told once."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from swift_diloco.core.files.whole_files import Lasting, write_whole
from swift_diloco.core.formats.status import Status, encode

log = logging.getLogger("syncer")

STATUS_INTERVAL_S = 1.0
"""Least time between two writes: often enough for a person who watches, and no work for the disk."""


class StatusFile:
    """One status file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._due = float("-inf")
        self._fault = ""

    def due(self, now: float) -> bool:
        """Whether enough time has passed since the last write."""
        return now >= self._due

    def write(self, status: Status, now: float) -> None:
        """Write the status, whatever the time since the last write."""
        self._due = now + STATUS_INTERVAL_S
        try:
            write_whole(self.path, [msgspec.json.format(encode(status), indent=1), b"\n"], Lasting.NOTHING)
            fault = ""
        except OSError as error:
            fault = f"{error.strerror}: {self.path}"
        if fault and not self._fault:
            log.error("the status cannot be written: %s", fault)
        self._fault = fault
