"""The files of a syncer's checkpoint: how one is written whole or not at all, and read only if it is intact.

    manifest.json                                    the newest checkpoint, written last
    manifest-<number>.json                           the kept ones, the newest among them
    layout-<fingerprint, 8 hex>-<checksum, 8 hex>.json
    fragment-<id>-v<version>-<digest, 8 hex>.safetensors     tensors `parameters` and, with outer momentum, `momentum`
    carried-<fragment>-<island>-<digest, 8 hex>.safetensors  tensor `delta` of a push that waits for its round

All but `manifest.json` never change once they have their name. Knows files and arrays, not when or why they are made.

Invariants: a file gets its name only after its bytes are on the disk; whoever reads one checks its checksum.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from swift_diloco.core.errors import DilocoError, DiskError, UserError
from swift_diloco.core.files.whole_files import Lasting, write_whole
from swift_diloco.core.formats.manifest import FORMAT, FileEntry, Manifest, SavedState, Shape
from swift_diloco.core.layout.fragments import fragment_elements
from swift_diloco.core.layout.tensors import check_layout
from swift_diloco.core.numbers.digest import fragment_digest

MANIFEST = "manifest.json"
BLOCK_BYTES = 8 * 1024 * 1024
"""Bytes written and hashed at a time: the checksum is made while the bytes are warm."""

HEADER_BYTES_MAX = 1 << 20
"""Largest header of a tensor file; ours have some 300 bytes."""

MANIFEST_BYTES_MAX = 1 << 30
"""Largest manifest or layout that is read: a million tensors have some 100 MB."""

Arrays = Mapping[str, NDArray[np.float32]]


class Damaged(DiskError):
    """A file of a checkpoint is not what its manifest says."""


class Intact(msgspec.Struct, frozen=True):
    """A checkpoint that was read whole."""

    manifest: Manifest
    shape: Shape
    values: tuple[NDArray[np.float32], ...]
    """Parameters per fragment, flat in layout order."""
    momenta: tuple[NDArray[np.float32] | None, ...]
    carried: tuple[NDArray[np.float32], ...]
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that were damaged, and how."""

    @property
    def state(self) -> SavedState:
        return self.manifest.state


def fragment_file(fragment: int, version: int, digest: str) -> str:
    """The name of a fragment's file."""
    return f"fragment-{fragment}-v{version}-{digest[:8]}.safetensors"


def manifest_file(number: int) -> str:
    """The name under which a manifest is kept."""
    return f"manifest-{number:08d}.json"


# ---------------------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------------------


def write_file(folder: Path, name: str, blocks: Iterable[bytes | memoryview]) -> FileEntry:
    """Write a file whole, but for its name, which waits for `sync_folder`. `OSError` leaves nothing behind."""
    hasher, size = xxhash.xxh3_128(), 0

    def hashed() -> Iterator[bytes | memoryview]:
        nonlocal size
        for block in blocks:
            hasher.update(block)
            size += len(block)
            yield block

    write_whole(folder / name, hashed(), Lasting.BYTES)
    return FileEntry(name, size, hasher.hexdigest())


def tensor_blocks(arrays: Arrays, facts: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """A safetensors file of flat float32 arrays, without copying them."""
    header: dict[str, object] = {"__metadata__": dict(facts)}
    offset = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": [array.size], "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for array in arrays.values():
        data = array.view(np.uint8).data
        for low in range(0, len(data), BLOCK_BYTES):
            yield data[low : low + BLOCK_BYTES]


def sealed(body: bytes) -> bytes:
    """JSON with its own checksum in front, so that a torn or edited manifest is known for one."""
    return b'{"checksum":"%s","manifest":%s}\n' % (xxhash.xxh3_128_hexdigest(body).encode(), body)


# ---------------------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------------------


def manifests(folder: Path) -> list[Path]:
    """Every manifest of a folder; the newest first."""
    numbered = sorted(folder.glob("manifest-*.json"), reverse=True)
    newest = folder / MANIFEST
    return [newest, *numbered] if newest.exists() else numbered


def read_manifest(path: Path) -> Manifest:
    """A manifest that is whole and of our format. Raises `Damaged`."""
    try:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise Damaged(f"{path.name} has more than {MANIFEST_BYTES_MAX} bytes")
        outer = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        if xxhash.xxh3_128_hexdigest(bytes(outer.manifest)) != outer.checksum:
            raise Damaged(f"{path.name} does not have the checksum it names")
        found = msgspec.json.decode(outer.manifest, type=_Format).format
        if found != FORMAT:
            raise Damaged(f"{path.name} has format {found}; this version reads format {FORMAT}")
        return msgspec.json.decode(outer.manifest, type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise Damaged(f"{path.name} cannot be read: {error}") from error


class _Sealed(msgspec.Struct):
    """What `sealed` makes."""

    checksum: str
    manifest: msgspec.Raw


class _Format(msgspec.Struct):
    """As much of a manifest as every format has."""

    format: int


def read_tensors(folder: Path, entry: FileEntry) -> dict[str, NDArray[np.float32]]:
    """The arrays of a tensor file, read once and checked. Raises `Damaged`."""
    path = folder / entry.name
    if Path(entry.name).name != entry.name:
        raise Damaged(f"{entry.name!r} is no file name")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != entry.size:
                raise Damaged(f"{entry.name} has {size} bytes; {entry.size} were written")
            content = np.fromfile(file, np.uint8)
    except OSError as error:
        raise Damaged(f"{entry.name} cannot be read: {error.strerror or error}") from error
    if xxhash.xxh3_128_hexdigest(content.data) != entry.checksum:
        raise Damaged(f"{entry.name} does not have the checksum its manifest names")
    return _arrays(content, entry.name)


def _arrays(content: NDArray[np.uint8], name: str) -> dict[str, NDArray[np.float32]]:
    """The arrays of a safetensors file in memory."""
    try:
        length = int.from_bytes(content[:8].tobytes(), "little")
        if not 0 < length <= min(HEADER_BYTES_MAX, content.size - 8):
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(content[8 : 8 + length].tobytes())
        data = content[8 + length :]
        found: dict[str, NDArray[np.float32]] = {}
        for key, facts in header.items():
            if key == "__metadata__":
                continue
            low, high = facts["data_offsets"]
            if facts["dtype"] != "F32" or not 0 <= low <= high <= data.size:
                raise ValueError(f"tensor {key!r} is {facts}")
            found[key] = data[low:high].view("<f4")
        return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{name} is no tensor file of ours: {error}") from error


def read_shape(folder: Path, manifest: Manifest) -> Shape:
    """Layout and plan of a checkpoint. Raises `Damaged`."""
    entry = manifest.layout
    try:
        content = (folder / Path(entry.name).name).read_bytes()
        if len(content) != entry.size or xxhash.xxh3_128_hexdigest(content) != entry.checksum:
            raise Damaged(f"{entry.name} does not have the checksum its manifest names")
        shape = msgspec.json.decode(content, type=Shape)
        check_layout(shape.layout)
    except Damaged:
        raise
    except (OSError, msgspec.DecodeError, DilocoError) as error:
        raise Damaged(f"{entry.name} cannot be read: {error}") from error
    if shape.layout.fingerprint != manifest.state.fingerprint:
        raise Damaged(f"{entry.name} has another fingerprint than its manifest names")
    if not len(shape.plan) == len(manifest.fragments) == len(manifest.state.values):
        raise Damaged(f"{entry.name} has {len(shape.plan)} fragments, its manifest {len(manifest.fragments)}")
    return shape


def read_checkpoint(folder: Path, manifest: Manifest) -> Intact:
    """Everything a manifest refers to. Raises `Damaged`."""
    shape = read_shape(folder, manifest)
    values: list[NDArray[np.float32]] = []
    momenta: list[NDArray[np.float32] | None] = []
    sizes = [fragment_elements(shape.layout, shape.plan, f) for f in range(len(shape.plan))]
    for name, entry in zip(manifest.state.values, manifest.fragments, strict=True):
        arrays = read_tensors(folder, entry)
        parameters, momentum = arrays.get("parameters"), arrays.get("momentum")
        size = sizes[name.fragment]
        if parameters is None or parameters.size != size or (momentum is not None and momentum.size != size):
            raise Damaged(f"{entry.name} does not hold {size} parameters of fragment {name.fragment}")
        if fragment_digest(parameters) != name.digest:
            raise Damaged(f"{entry.name} does not have the digest {name.digest} of its value")
        values.append(parameters)
        momenta.append(momentum)
    carried = []
    for push, entry in zip(manifest.state.carried, manifest.carried, strict=True):
        delta = read_tensors(folder, entry).get("delta")
        if delta is None or delta.size != sizes[push.fragment]:
            raise Damaged(f"{entry.name} does not hold a delta of fragment {push.fragment}")
        carried.append(delta)
    return Intact(manifest, shape, tuple(values), tuple(momenta), tuple(carried))


def read_newest(folder: Path) -> Intact:
    """The newest intact checkpoint of a folder. Raises `UserError` when there is none."""
    if not folder.is_dir():
        raise UserError(f"{folder} holds no checkpoint of a syncer: there is no such folder")
    skipped: list[str] = []
    candidates: dict[int, Manifest] = {}
    for path in manifests(folder):
        try:
            manifest = read_manifest(path)
            candidates.setdefault(manifest.number, manifest)
        except Damaged as error:
            skipped.append(str(error))
    for number in sorted(candidates, reverse=True):
        try:
            intact = read_checkpoint(folder, candidates[number])
        except Damaged as error:
            skipped.append(f"{manifest_file(number)} (outer step {candidates[number].state.step}): {error}")
        else:
            return msgspec.structs.replace(intact, skipped=tuple(skipped))
    if skipped:
        raise UserError(f"no checkpoint in {folder} is intact: {'; '.join(skipped)}; restore a copy, or start anew")
    raise UserError(f"{folder} holds no checkpoint of a syncer: there is no {MANIFEST}")
