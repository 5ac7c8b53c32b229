"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import xxhash

from swift_diloco.core.files.checkpoint_files import TEMPORARY
from swift_diloco.core.formats.manifest import FileEntry


def write_file(folder: Path, name: str, blocks: Iterator[bytes | memoryview]) -> FileEntry:
    """Write a file under a temporary name, to the disk, and give it its name. `OSError` leaves nothing behind."""
    hasher, size = xxhash.xxh3_128(), 0
    temporary = folder / f"{TEMPORARY}{name}"
    try:
        with temporary.open("wb") as file:
            for block in blocks:
                hasher.update(block)
                file.write(block)
                size += len(block)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, folder / name)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return FileEntry(name, size, hasher.hexdigest())


def sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
