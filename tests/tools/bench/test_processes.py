"""The syncer of a bench, and the end of processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swift_diloco.core.errors import DilocoError
from swift_diloco.tools.bench import processes
from swift_diloco.tools.bench.processes import SyncerProcess, end, scratch_folder

DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"


@pytest.mark.net
def test_syncer_listens_on_loopback_and_leaves_nothing_behind() -> None:
    with scratch_folder() as folder, SyncerProcess(folder / "run") as syncer:
        assert syncer.address.startswith("tcp://127.0.0.1:")
        assert "listening on" in syncer.text()
    assert syncer.process.returncode is not None and not folder.exists()


@pytest.mark.net
def test_syncer_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    with (
        SyncerProcess(tmp_path, "--frobnicate") as syncer,
        pytest.raises(DilocoError, match=r"ended with code 2: .*frobnicate"),
    ):
        syncer.address  # noqa: B018 (the question itself is the test)


@pytest.mark.net
def test_process_that_does_not_end_when_told_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_S", 0.05)
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        end(process)
        assert process.returncode == -9
        end(process)
