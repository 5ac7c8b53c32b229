"""The lock of a run folder."""

from __future__ import annotations

import threading
from pathlib import Path

from swift_diloco.core.files.run_folder import RunFolder, living_pid


def test_whoever_looks_for_a_syncer_keeps_none_from_starting(tmp_path: Path) -> None:
    with RunFolder(tmp_path):
        pass
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            living_pid(tmp_path)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(20):
            with RunFolder(tmp_path):
                pass
    finally:
        stop.set()
        for looker in lookers:
            looker.join()
    assert living_pid(tmp_path) is None
