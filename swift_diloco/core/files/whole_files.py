"""The one way in which a file is written: it is there whole, under its name, or not at all.

Temporary name, fsync, rename, fsync of the folder. Whoever is killed in between leaves the old file, and at most a
temporary one beside it; a write that fails leaves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp-"
"""How the names of unfinished files begin."""


@contextmanager
def replaced(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Gives a temporary path; what was written there when the block ends becomes `path`.

    Without `durable` readers see the old file or the new one, as always, but after a power cut there may be neither:
    for files that are rewritten all the time, by a thread that must not wait for a busy disk.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        yield temporary
        if durable:
            _sync(temporary)
        os.replace(temporary, path)
    except Exception:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync(path.parent)


def write_whole(
    path: Path, blocks: Iterable[bytes | memoryview], *, durable: bool = True, mode: int | None = None
) -> None:
    """Replace `path` by a file of these bytes. `mode`: its permissions, from before its first byte."""
    with replaced(path, durable=durable) as temporary:
        if mode is not None:
            temporary.unlink(missing_ok=True)
            temporary.touch(mode, exist_ok=False)
        with temporary.open("wb") as file:
            file.writelines(blocks)


def _sync(path: Path) -> None:
    """Have a file's bytes, or the names of a folder's files, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
