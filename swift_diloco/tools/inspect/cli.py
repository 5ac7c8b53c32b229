"""`swift-diloco inspect CHECKPOINT`: what the sync record beside a trainer checkpoint says, for people.

Reads the record (and checks the files of the anchors by size and checksum); knows no trainer and no syncer. A
checkpoint without a usable record is told with the reason, and what a resume from it would be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from swift_diloco.core.command_line import Parser
from swift_diloco.core.errors import UserError
from swift_diloco.island.files.record_files import RECORD_FILE, Record, UnusableRecord, anchor_fault, load_record

CHECKPOINT_FOLDER = re.compile(r"checkpoint-(\d+)")

DIGEST_CHARACTERS = 8
"""Of a digest, in the table."""


def main(words: Sequence[str]) -> int:
    """Print the record and return 0; a user's mistake, and a record that cannot be used, is a `UserError`."""
    parser = Parser(
        prog="swift-diloco inspect",
        description="Show which global values a trainer checkpoint stands on, and what was done since.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a folder checkpoint-N, or its record")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--no-check", action="store_true", help="do not read the anchors' files to check them")
    asked = parser.parse_args(list(words))
    folder = _folder(asked.checkpoint)
    try:
        record = load_record(folder)
    except UnusableRecord as error:
        raise UserError(f"{error}; a resume from this checkpoint is a cold start") from error
    faults = {} if asked.no_check else {f.name: fault for f in record.anchors if (fault := anchor_fault(folder, f))}
    print(json.dumps(_facts(record, faults)) if asked.json else _text(folder, record, faults))
    return 0


def _folder(path: Path) -> Path:
    if path.name == RECORD_FILE:
        path = path.parent
    if not path.is_dir():
        raise UserError(f"{path} is no folder; expected a trainer checkpoint such as output/checkpoint-100")
    if not (path / RECORD_FILE).exists() and (inside := sorted(path.glob(f"*/{RECORD_FILE}"))):
        names = ", ".join(one.parent.name for one in inside)
        raise UserError(f"{path} holds checkpoints and is none; expected one of {names} in it")
    return path


def _facts(record: Record, faults: dict[str, str]) -> dict[str, Any]:
    facts = msgspec.to_builtins(record)
    assert isinstance(facts, dict)
    return {**facts, "anchor_faults": faults}


def _text(folder: Path, record: Record, faults: dict[str, str]) -> str:
    rows = [("fragment", "tensors", "version", "digest", "steps", "tokens", "delta")]
    for fragment, (tensors, anchor) in enumerate(zip(record.plan.fragments, record.fragments, strict=True)):
        if anchor is None:
            rows.append((str(fragment), str(len(tensors)), "none", "", "", "", ""))
            continue
        sent = "pushed" if anchor.spent else "not pushed"
        digest = anchor.digest[:DIGEST_CHARACTERS] or "?"
        numbers = (str(anchor.version), digest, str(anchor.steps), str(anchor.tokens))
        rows.append((str(fragment), str(len(tensors)), *numbers, sent))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*_heading(folder, record, faults), "", *table])


def _heading(folder: Path, record: Record, faults: dict[str, str]) -> list[str]:
    lines = [
        f"checkpoint  {folder}",
        f"iteration   {record.iteration}{_doubt(folder, record)}",
        f"island      {record.island}",
        f"run         {record.run or 'not given: not compared'}",
        f"layout      {record.layout or 'not given: not compared'}",
    ]
    if record.contract is not None:
        c = record.contract
        lines.append(f"contract    H {c.sync_every_steps}, align {c.align}, published as {c.publish_encoding}")
    if record.anchors:
        size = sum(file.size for file in record.anchors)
        lines.append(f"anchors     {len(record.anchors)} files, {size:,} bytes: a resume keeps local progress")
        lines += [f"            damaged: {fault}" for fault in faults.values()]
    else:
        lines.append("anchors     not saved: a resume keeps local progress only where the global values did not move")
    return lines


def _doubt(folder: Path, record: Record) -> str:
    named = CHECKPOINT_FOLDER.fullmatch(folder.name)
    if named is None or int(named[1]) == record.iteration:
        return ""
    return f" (but the folder says {named[1]}: a resume from it is a cold start)"
