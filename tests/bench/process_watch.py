"""What another process uses while something is measured."""

from __future__ import annotations

import os
import threading
from pathlib import Path

SAMPLE_S = 0.05
"""Time between two looks at a process's memory: a buffer of 64 MiB is not filled faster."""


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
