"""Reading and writing the sync record as one island: collective over its ranks, and what cannot be used is told once.

The record is rank 0's; each rank has its own anchors. All ranks come to the same result: if one rank's anchors cannot
be used, none are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout
from swift_diloco.island.files.record_files import (
    AnchorFile,
    Record,
    UnusableRecord,
    forget_record,
    read_anchors,
    read_record,
    write_anchors,
    write_record,
)
from swift_diloco.island.numbers.host_buffers import Values
from swift_diloco.island.ranks.rank_group import RankGroup
from swift_diloco.island.remembered import Remembered

logger = logging.getLogger("swift_diloco")


@dataclass(frozen=True)
class ResumedRank:
    """What a checkpoint gave this rank."""

    remembered: Remembered | None = None
    anchors: Mapping[int, Values] = field(default_factory=dict)

    def anchors_for(self, plan: FragmentPlan) -> Mapping[int, Values]:
        """The anchors, if they are of these fragments."""
        return self.anchors if self.remembered is not None and self.remembered.plan == plan else {}


NOTHING_RESUMED = ResumedRank()


@dataclass(frozen=True)
class SavedRank:
    """What one rank has to save."""

    group: RankGroup
    pieces: PieceMap
    anchors: Mapping[int, Values]
    """Empty: anchors are not saved."""


def resume(folder: Path | None, step: int, layout: Layout, boxes: tuple[Box, ...], group: RankGroup) -> ResumedRank:
    """The record in a loaded checkpoint (None: a fresh start), with this rank's anchors if every rank has them."""
    if folder is None:
        return NOTHING_RESUMED
    record = _shared_record(folder, step, layout, group)
    if record is None:
        return NOTHING_RESUMED
    anchors: Mapping[int, Values] = {}
    failure = "" if record.anchors else "its anchors were not saved"
    if record.anchors:
        try:
            anchors = read_anchors(folder, record.anchors, PieceMap(layout, record.plan, boxes))
        except UnusableRecord as error:
            failure = str(error)
    (usable,) = group.all_true([not failure])
    reasons = [f"rank {rank}: {part.decode()}" for rank, part in enumerate(group.gather(failure.encode())) if part]
    if group.rank == 0:
        what = "no anchors (" + (reasons[0] if record.anchors else failure) + ")" if reasons else "its anchors"
        level = logging.WARNING if reasons and record.anchors else logging.INFO
        logger.log(level, "resuming from the record in %s, with %s", folder, what)
    encoding = record.contract.publish_encoding if record.contract is not None else ""
    remembered = Remembered(record.run, record.plan, record.fragments, usable, encoding)
    return ResumedRank(remembered, anchors if usable else {})


def _shared_record(folder: Path, step: int, layout: Layout, group: RankGroup) -> Record | None:
    """Rank 0's reading of the record, on every rank."""
    payload = b""
    if group.rank == 0:
        try:
            payload = msgspec.json.encode(read_record(folder, iteration=step, layout=layout.fingerprint))
        except UnusableRecord as error:
            logger.warning("cold start, local values will be overwritten: %s", error)
    payload = group.broadcast(payload)
    return msgspec.json.decode(payload, type=Record) if payload else None


def save_record(folder: Path, record: Record, rank: SavedRank) -> None:
    """Each rank writes its anchors, then rank 0 the record: a crash in between leaves a checkpoint without record.

    A disk that refuses costs the record, not the training: it is told, and the checkpoint counts as one without record.
    """
    failure = ""
    written: AnchorFile | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if rank.group.rank == 0:
            forget_record(folder)
        written = write_anchors(folder, rank.group.rank, rank.pieces, rank.anchors) if rank.anchors else None
    except OSError as error:
        failure = f"the anchors could not be written: {error}"
        logger.error("rank %d: %s", rank.group.rank, failure)
    parts = rank.group.gather(msgspec.json.encode(written))
    (all_written,) = rank.group.all_true([not failure])
    if rank.group.rank == 0 and all_written:
        files = [msgspec.json.decode(part, type=AnchorFile | None) for part in parts]
        whole = msgspec.structs.replace(record, anchors=tuple(file for file in files if file is not None))
        try:
            write_record(folder, whole)
        except OSError as error:
            logger.error("no sync record in %s, a resume from it will be a cold start: %s", folder, error)
