"""The one way in which a file is written: it is there whole, under its name, or not at all.

Temporary name, fsync, rename, fsync of the folder. Whoever is killed in between leaves the old file, and at most a
temporary one beside it; a write that fails leaves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

TEMPORARY = ".tmp-"
"""How the names of unfinished files begin."""


class Lasting(Enum):
    """How much of a file is on the disk when its writer goes on. Readers see the old file or the new one, always."""

    WHOLE = "bytes and name"
    BYTES = "bytes; the name is when `sync_folder` was called, once for many files"
    NOTHING = "neither: for a file that is rewritten all the time by a thread that must not wait for a busy disk"


@contextmanager
def replaced(path: Path, lasting: Lasting = Lasting.WHOLE) -> Iterator[Path]:
    """Gives a temporary path; what was written there when the block ends becomes `path`."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        yield temporary
        if lasting is not Lasting.NOTHING:
            _sync(temporary)
        os.replace(temporary, path)
    except Exception:
        temporary.unlink(missing_ok=True)
        raise
    if lasting is Lasting.WHOLE:
        sync_folder(path.parent)


def write_whole(
    path: Path, blocks: Iterable[bytes | memoryview], lasting: Lasting = Lasting.WHOLE, mode: int | None = None
) -> None:
    """Replace `path` by a file of these bytes. `mode`: its permissions, from before its first byte."""
    with replaced(path, lasting) as temporary:
        if mode is not None:
            temporary.unlink(missing_ok=True)
            temporary.touch(mode, exist_ok=False)
        with temporary.open("wb") as file:
            file.writelines(blocks)


def sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on the disk too."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
