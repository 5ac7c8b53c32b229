"""Writes checkpoints: only what is new, each file whole, the manifest last; and takes away what no kept one needs.

A `Store` is one folder. The values it writes are immutable buffers, so nothing is copied and nobody waits for it; when
they are written is the `Writer`'s business.

Knows no rounds and no islands. Invariants: see `checkpoint_files`; a file is removed only when a newer manifest, on the
disk, does without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.checkpoint_files import (
    MANIFEST,
    Damaged,
    fragment_file,
    manifest_file,
    read_manifest,
    sealed,
    tensor_blocks,
    write_file,
)
from swift_diloco.core.files.whole_files import TEMPORARY, sync_folder, write_whole
from swift_diloco.core.formats.frames import WIRE_VERSION
from swift_diloco.core.formats.manifest import FORMAT, CarriedPush, FileEntry, Manifest, SavedState, Shape
from swift_diloco.core.formats.messages import ValueName

log = logging.getLogger("syncer")

VOID = "void-"
"""How the names of manifests begin that were damaged, or newer than the one that was continued."""

PATTERNS = (
    "fragment-*.safetensors",
    "carried-*.safetensors",
    "layout-*.json",
    "manifest-*.json",
    f"{VOID}*",
    f"{TEMPORARY}*",
)
"""Names of the files that are ours to take away."""

LOCK = "syncer.lock"
"""Held while a syncer writes to the folder; the kernel's, so that it ends with the process."""

PROBE = f"{TEMPORARY}probe"


@dataclass(frozen=True, eq=False)
class FragmentPart:
    """A fragment's tensors: read-only, or never written to again."""

    values: NDArray[np.float32]
    momentum: NDArray[np.float32] | None


class Store:
    """The folder of one run's checkpoints."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep
        self._known: dict[str, FileEntry] = {}
        """Files that a manifest of ours, read or written, refers to."""
        self._kept: list[Manifest] = []
        self._number = 0
        self._lock: IO[str] | None = None

    def prepare(self) -> None:
        """Make sure that the folder can be written to. Raises `UserError`."""
        probe = self.folder / PROBE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
            self._lock = (self.folder / LOCK).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UserError(
                f"another syncer writes its checkpoints to {self.folder}; choose another --checkpoint-path"
            ) from None
        except OSError as error:
            raise UserError(
                f"cannot write checkpoints to {self.folder}: {error.strerror}; choose another --checkpoint-path"
            ) from error

    def close(self) -> None:
        """Let others write to the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def resumed(self, manifest: Manifest) -> None:
        """Go on from a checkpoint that was read: its files need not be written again, newer manifests are void."""
        try:
            for path in self.folder.glob("manifest-*.json"):
                self._keep_or_void(path, manifest)
            content = (self.folder / manifest_file(manifest.number)).read_bytes()
            write_whole(self.folder / MANIFEST, [content])
        except (OSError, ValueError) as error:
            raise UserError(f"cannot continue the checkpoint in {self.folder}: {error}") from error
        self._kept.sort(key=lambda each: each.number)
        entries = (manifest.layout, *manifest.fragments, *manifest.carried)
        self._known = {entry.name: entry for entry in entries}

    def _keep_or_void(self, path: Path, present: Manifest) -> None:
        """One manifest of the folder: kept if it is not newer than the present one, else put aside."""
        number = int(path.stem.partition("-")[2])
        self._number = max(self._number, number)
        if number > present.number:
            path.rename(path.with_name(f"{VOID}{path.name}"))
            return
        with contextlib.suppress(Damaged):  # A damaged one that is not wanted goes with the next cleaning.
            self._kept.append(read_manifest(path))

    def write_fragment(self, name: ValueName, part: FragmentPart) -> FileEntry:
        """A fragment's file, unless it is there."""
        file = fragment_file(name.fragment, name.version, name.digest)
        arrays = {"parameters": part.values}
        if part.momentum is not None:
            arrays["momentum"] = part.momentum
        facts = {"fragment": str(name.fragment), "version": str(name.version), "digest": name.digest}
        return self._once(file, lambda: tensor_blocks(arrays, facts))

    def write_carried(self, push: CarriedPush, delta: Callable[[], NDArray[np.float32]]) -> FileEntry:
        """The file of a carried delta, unless it is there."""
        mark = xxhash.xxh3_64_hexdigest(f"{push.push} {push.anchor.digest}".encode())[:8]
        file = f"carried-{push.fragment}-{push.island}-{mark}.safetensors"
        facts = {"push": push.push, "island": str(push.island), "anchor": push.anchor.digest}
        return self._once(file, lambda: tensor_blocks({"delta": delta()}, facts))

    def write_shape(self, shape: Shape) -> FileEntry:
        """The layout's file, unless it is there: the first of a checkpoint."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.encode(shape)
        mark = xxhash.xxh3_64_hexdigest(content)[:8]
        return self._once(f"layout-{shape.layout.fingerprint[:8]}-{mark}.json", lambda: [content])

    def _once(self, file: str, blocks: Callable[[], Iterable[bytes | memoryview]]) -> FileEntry:
        known = self._known.get(file)
        if known is None or not _is_there(self.folder / file, known.size):
            self._known[file] = write_file(self.folder, file, blocks())
        return self._known[file]

    def write_manifest(self, state: SavedState, layout: FileEntry, files: Sequence[Sequence[FileEntry]]) -> Manifest:
        """The manifest, after everything it refers to is on the disk."""
        fragments, carried = files
        sync_folder(self.folder)
        number = self._number + 1
        manifest = Manifest(FORMAT, WIRE_VERSION, number, state, layout, tuple(fragments), tuple(carried))
        content = sealed(msgspec.json.encode(manifest))
        write_file(self.folder, manifest_file(number), [content])
        write_whole(self.folder / MANIFEST, [content])
        self._number = number
        self._kept.append(manifest)
        return manifest

    def clean(self) -> None:
        """Take away what the kept manifests do not need."""
        self._kept = self._kept[-self._keep :]
        needed = {manifest_file(each.number) for each in self._kept}
        for each in self._kept:
            needed |= {entry.name for entry in (each.layout, *each.fragments, *each.carried)}
        self._known = {name: entry for name, entry in self._known.items() if name in needed}
        for pattern in PATTERNS:
            for path in self.folder.glob(pattern):
                if path.name not in needed:
                    path.unlink(missing_ok=True)


def _is_there(path: Path, size: int) -> bool:
    """Whether nobody took a file away behind our back."""
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False
