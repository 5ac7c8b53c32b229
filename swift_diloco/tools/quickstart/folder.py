"""The folder of one quickstart run: what lies where, and who may use it.

It knows paths, not contents. Invariants: a folder that is not empty and not ours is never touched; two runs never share
one folder; a run starts without anything that an earlier one left.
"""

import fcntl
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.run_folder import STATUS_FILE, TAPE_FILE
from swift_diloco.core.files.whole_files import TEMPORARY

MARKER = ".swift-diloco-quickstart"
"""File by which a folder is known as ours; locked while a run uses it."""

OWN_ENTRIES = ("data", "model", "logs", "syncer", "island-*", "alone", "report.json", "report.html", f"{TEMPORARY}*")
"""What a run writes, and so what the next one in the same folder removes."""


@dataclass(frozen=True)
class QuickstartFolder:
    """Where everything of a run lies."""

    root: Path

    @property
    def model(self) -> Path:
        """The model that all jobs start from."""
        return self.root / "model"

    @property
    def syncer(self) -> Path:
        """The run folder of the embedded syncer: address, status, tape, log."""
        return self.root / "syncer"

    @property
    def tape(self) -> Path:
        """The syncer's event tape."""
        return self.syncer / TAPE_FILE

    @property
    def status(self) -> Path:
        """What the syncer does just now."""
        return self.syncer / STATUS_FILE

    @property
    def held_out(self) -> Path:
        """The questions that nobody trains on."""
        return self.root / "data" / "held-out.jsonl"

    def shard(self, island: int) -> Path:
        """The training data of one island."""
        return self.root / "data" / f"island-{island}.jsonl"

    def output(self, job: str) -> Path:
        """The trainer's output folder of one job."""
        return self.root / job

    def log(self, job: str) -> Path:
        """Where a job's terminal output goes."""
        return self.root / "logs" / f"{job}.log"


def claim(root: Path) -> tuple[QuickstartFolder, IO[str]]:
    """Make the folder ours and empty; the lock is held until the returned file is closed."""
    root = root.expanduser().resolve()
    if root.exists() and not root.is_dir():
        raise UserError(f"--out {root} is a file; name a folder")
    marker = root / MARKER
    if root.is_dir() and not marker.exists() and any(root.iterdir()):
        raise UserError(f"--out {root} is not empty and not from an earlier quickstart; name a new or an empty folder")
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = marker.open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {root} cannot be written: {error.strerror}; name another folder") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise UserError(f"another quickstart is running in {root}; name another folder with --out") from error
    _remove_own(root)
    for name in ("data", "logs"):
        (root / name).mkdir()
    return QuickstartFolder(root), lock


def _remove_own(root: Path) -> None:
    for pattern in OWN_ENTRIES:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
