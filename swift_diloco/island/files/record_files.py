"""The sync record beside a trainer checkpoint: which global values the model stood on, and what was done since.

`diloco_record.json` is written last and atomically, so a checkpoint either has a whole record or none (a cold start).
With `save_anchors` each rank's anchor values lie beside it in safetensors files, keyed by tensor name and box, so
that an island with another parallel layout can read them. Every file is checked by size and checksum when read;
nothing is unpickled.

Knows no session and no trainer. A record that cannot be used is an `UnusableRecord` whose text says why; the caller
treats it as none and tells so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from swift_diloco.core.errors import DiskError
from swift_diloco.core.files.whole_files import replaced, write_whole
from swift_diloco.core.formats.messages import Contract
from swift_diloco.core.layout.boxes import Box, overlap, slices
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout
from swift_diloco.island.remembered import AnchorRecord

if TYPE_CHECKING:  # `swift-diloco inspect` reads records where no torch is.
    from swift_diloco.island.numbers.host_buffers import Values

RECORD_FORMAT = 1
"""Raised with every change that an older version would misread."""

RECORD_FILE = "diloco_record.json"
ANCHORS_FILE = "diloco_anchors_{rank:05d}.safetensors"

RECORD_BYTES_MAX = 64 * 1024 * 1024
"""Largest record read: thousands of fragments and files fit a hundred times over."""

READ_BYTES = 8 * 1024 * 1024
"""A file is checksummed in blocks of this size."""


class UnusableRecord(DiskError):
    """A record, or the anchors beside it, cannot be used. The text says which and why."""


class AnchorFile(msgspec.Struct, frozen=True, array_like=True):
    """One rank's saved anchors: file name, size in bytes, xxh3-128 of the file (hex)."""

    name: str
    size: int
    checksum: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `diloco_record.json`. Empty or missing run, layout and contract are not compared."""

    format: int
    iteration: int
    island: int = 0
    run: str = ""
    layout: str = ""
    contract: Contract | None = None
    plan: FragmentPlan
    fragments: tuple[AnchorRecord | None, ...]
    anchors: tuple[AnchorFile, ...] = ()


def write_record(folder: Path, record: Record) -> None:
    """Write the record, whole."""
    data = msgspec.json.format(msgspec.json.encode(record), indent=1)
    write_whole(folder / RECORD_FILE, [data])


def forget_record(folder: Path) -> None:
    """Remove a record, if there is one, before what it describes is written over."""
    (folder / RECORD_FILE).unlink(missing_ok=True)


def load_record(folder: Path) -> Record:
    """The record of a checkpoint, whatever it is of. Raises `UnusableRecord`."""
    path = folder / RECORD_FILE
    try:
        if path.stat().st_size > RECORD_BYTES_MAX:
            raise UnusableRecord(f"{path} is larger than {RECORD_BYTES_MAX} bytes")
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        raise UnusableRecord(f"there is no {RECORD_FILE} in {folder}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise UnusableRecord(f"{path} cannot be read: {error}") from None
    if record.format != RECORD_FORMAT:
        raise UnusableRecord(f"{path} has format {record.format}; this version reads format {RECORD_FORMAT}")
    if len(record.fragments) != len(record.plan):
        raise UnusableRecord(f"{path} names {len(record.fragments)} anchors for {len(record.plan)} fragments")
    return record


def read_record(folder: Path, *, iteration: int, layout: str) -> Record:
    """The record of a checkpoint at `iteration` of a model with this layout fingerprint. Raises `UnusableRecord`."""
    path, record = folder / RECORD_FILE, load_record(folder)
    if record.iteration != iteration:
        raise UnusableRecord(f"{path} is of iteration {record.iteration}, the checkpoint of iteration {iteration}")
    if record.layout and record.layout != layout:
        raise UnusableRecord(f"{path} is of another model: layout {record.layout}, here {layout}")
    return record


# ---------------------------------------------------------------------------------------------------------------------
# Anchor values
# ---------------------------------------------------------------------------------------------------------------------


def write_anchors(folder: Path, rank: int, pieces: PieceMap, anchors: Mapping[int, Values]) -> AnchorFile | None:
    """Write this rank's anchors (fragment -> stream); None where the rank owns nothing."""
    tensors = {
        _key(pieces.layout, box): part.reshape(box.shape)
        for fragment, stream in anchors.items()
        for box, part in _parts(pieces, fragment, stream)
    }
    if not tensors:
        return None
    path = folder / ANCHORS_FILE.format(rank=rank)
    with replaced(path) as temporary:
        save_file(tensors, temporary)
        return AnchorFile(path.name, temporary.stat().st_size, _file_checksum(temporary))


def read_anchors(folder: Path, files: Sequence[AnchorFile], pieces: PieceMap) -> dict[int, Values]:
    """This rank's anchors by fragment, put together from files of any parallel layout. Raises `UnusableRecord`."""
    # Anchors are finite, so what is still NaN at the end was in no file, even where files overlap.
    streams = {f: np.full(pieces.elements(f), np.nan, dtype=np.float32) for f in range(len(pieces.plan))}
    wanted: dict[str, list[tuple[Box, Values]]] = {}
    for fragment, stream in streams.items():
        for box, part in _parts(pieces, fragment, stream):
            wanted.setdefault(pieces.layout.tensors[box.tensor].name, []).append((box, part.reshape(box.shape)))
    for file in files:
        if Path(file.name).name != file.name:
            raise UnusableRecord(f"{file.name!r} is not a file of the checkpoint {folder}")
        _copy_overlaps(folder / file.name, file, wanted)
    missing = sum(int(np.isnan(stream).sum()) for stream in streams.values())
    if missing:
        raise UnusableRecord(f"the anchors in {folder} lack {missing} of this rank's elements")
    return streams


def anchor_fault(folder: Path, file: AnchorFile) -> str:
    """Why a file of anchors cannot be used; empty: it is as it was written."""
    path = folder / file.name
    try:
        size = path.stat().st_size
        if size != file.size:
            return f"{path} has {size} bytes; expected {file.size}"
        return (
            "" if _file_checksum(path) == file.checksum else f"{path} is damaged: its checksum is not {file.checksum}"
        )
    except OSError as error:
        return f"{path} cannot be read: {error}"


def _copy_overlaps(path: Path, file: AnchorFile, wanted: Mapping[str, Iterable[tuple[Box, Values]]]) -> None:
    """Copy what a file has of the wanted boxes."""
    try:
        if path.stat().st_size != file.size:
            raise UnusableRecord(f"{path} has {path.stat().st_size} bytes; expected {file.size}")
        with safe_open(path, framework="numpy") as tensors:
            checked = False
            for key in tensors.keys():  # noqa: SIM118 (not a dict)
                name, start, shape = _parse_key(key)
                for box, out in wanted.get(name, ()):
                    there = Box(box.tensor, start, shape)
                    common = overlap(there, box)
                    if common is None:
                        continue
                    if not checked and _file_checksum(path) != file.checksum:
                        raise UnusableRecord(f"{path} is damaged: its checksum is not {file.checksum}")
                    checked = True
                    out[slices(common, box)] = tensors.get_slice(key)[slices(common, there)]
    except (OSError, SafetensorError, ValueError) as error:
        raise UnusableRecord(f"{path} cannot be read: {error}") from None


def _parts(pieces: PieceMap, fragment: int, stream: Values) -> Iterable[tuple[Box, Values]]:
    position = 0
    for box in pieces.fragment_boxes(fragment):
        yield box, stream[position : position + box.elements]
        position += box.elements


def _key(layout: Layout, box: Box) -> str:
    """`name|start|shape`, numbers separated by commas."""
    return "|".join([layout.tensors[box.tensor].name, ",".join(map(str, box.start)), ",".join(map(str, box.shape))])


def _parse_key(key: str) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    name, start, shape = key.rsplit("|", 2)
    return name, tuple(int(n) for n in start.split(",") if n), tuple(int(n) for n in shape.split(",") if n)


def _file_checksum(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            hasher.update(block)
    return hasher.hexdigest()
