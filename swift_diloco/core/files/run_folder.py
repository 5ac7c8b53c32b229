"""The syncer's run folder as other processes see it: who lives there and where it listens.

Shared by the syncer, which holds the lock while it lives, and by those who look for it. The lock is the
kernel's (`flock`): it ends with the process, however that ends, and says the truth where a pid in a file would
lie after a crash.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.key_files import write_secret_file
from swift_diloco.core.files.whole_files import Lasting, write_whole

ADDRESS_FILE = "address.json"
STATUS_FILE = "status.json"
TAPE_FILE = "tape.jsonl"
LOG_FILE = "syncer.log"
LOCK_FILE = "syncer.lock"
LOCK_S = 1.0
"""How long a starting syncer tries for the lock: whoever looks whether one lives here holds it for a moment."""
LOCK_POLL_S = 0.01
ADMIN_FILE = "admin.token"
"""Secret of the living syncer by which an operator is known who can read its run folder."""


def write_json(path: Path, fields: Mapping[str, object]) -> None:
    """Replace `path` by one JSON object. What it says is about a living process, so it need not outlive a power cut."""
    write_whole(path, [json.dumps(fields, indent=1, ensure_ascii=False).encode(), b"\n"], Lasting.NOTHING)


def living_pid(folder: Path) -> int | None:
    """Process id of the syncer that lives in a run folder; None when none does."""
    try:
        with (folder / LOCK_FILE).open("r", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read().strip()
                return int(text) if text.isdigit() else 0
    except FileNotFoundError:
        pass
    return None


def living_address(folder: Path) -> str | None:
    """Where the living syncer of a run folder listens; None when there is none, or it is not ready."""
    found = living_facts(folder)
    return str(found["address"]) if found is not None else None


def living_facts(folder: Path) -> dict[str, object] | None:
    """Address, process and public key (empty without encryption) of the living syncer of a run folder."""
    pid = living_pid(folder)
    if pid is None:
        return None
    try:
        found = json.loads((folder / ADDRESS_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) and found.get("pid") == pid else None


class RunFolder:
    """A run folder that this process, a syncer, holds. Use it with `with`; leaving it removes the address."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _locked(self) -> bool:
        """Whether the lock is ours now."""
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(LOCK_POLL_S)

    def __enter__(self) -> RunFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / LOCK_FILE).open("a+", encoding="ascii")
        except OSError as error:
            raise UserError(
                f"cannot use the run folder {self.path}: {error.strerror}; choose another --run-dir"
            ) from error
        if not self._locked():
            self._lock.close()
            raise UserError(
                f"a syncer lives in the run folder {self.path} already (process {living_pid(self.path) or 'unknown'}); "
                "stop it or choose another --run-dir"
            )
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()
        (self.path / ADDRESS_FILE).unlink(missing_ok=True)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for name in (ADDRESS_FILE, ADMIN_FILE):
            (self.path / name).unlink(missing_ok=True)
        self._lock.close()

    def publish_address(self, address: str, instance: str, public_key: str = "") -> None:
        """Let others find us."""
        facts = {"address": address, "pid": os.getpid(), "instance": instance, "public_key": public_key}
        write_json(self.path / ADDRESS_FILE, facts)

    def publish_admin_token(self, token: str) -> None:
        """Let whoever can read our files give orders."""
        write_secret_file(self.path / ADMIN_FILE, token + "\n")
