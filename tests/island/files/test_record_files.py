"""The sync record and the anchors beside a trainer checkpoint: round trips, other layouts, and everything damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from swift_diloco.core.formats.messages import Contract
from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import make_layout
from swift_diloco.island.files.record_files import (
    RECORD_BYTES_MAX,
    RECORD_FILE,
    RECORD_FORMAT,
    AnchorFile,
    Record,
    UnusableRecord,
    read_anchors,
    read_record,
    write_anchors,
    write_record,
)
from swift_diloco.island.numbers.host_buffers import Values
from swift_diloco.island.remembered import AnchorRecord
from tests.fakes.quadratic import SPECS, QuadraticModel

LAYOUT = make_layout(SPECS)
PLAN = plan_fragments(LAYOUT, 3, "binpack")
RECORD = Record(
    format=RECORD_FORMAT,
    iteration=8,
    island=3,
    run="run",
    layout=LAYOUT.fingerprint,
    contract=Contract(sync_every_steps=7, align="carry"),
    plan=PLAN,
    fragments=(AnchorRecord(4, "d4", 3, 30, True, "g.2"), AnchorRecord(5, "d5"), None),
    anchors=(AnchorFile("a", 1, "c"),),
)


def read(folder: Path, iteration: int = 8, layout: str = LAYOUT.fingerprint) -> Record:
    return read_record(folder, iteration=iteration, layout=layout)


# -- the record --------------------------------------------------------------------------------------------------------


def test_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    assert read(tmp_path) == RECORD
    assert [path.name for path in tmp_path.iterdir()] == [RECORD_FILE]


def test_record_replaces_an_earlier_one_whole(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    later = msgspec.structs.replace(RECORD, run="r" * 10_000, iteration=9)
    write_record(tmp_path, later)
    assert read(tmp_path, iteration=9) == later


def test_record_is_text_that_people_can_read_and_write(tmp_path: Path) -> None:
    by_hand = {"format": 1, "iteration": 8, "plan": {"fragments": PLAN.fragments}}
    by_hand["fragments"] = [{"version": 4}, {"version": 5, "steps": 2}, None]
    (tmp_path / RECORD_FILE).write_text(json.dumps(by_hand))
    record = read(tmp_path)
    assert (record.run, record.layout, record.contract, record.anchors) == ("", "", None, ())
    assert record.fragments == (AnchorRecord(4), AnchorRecord(5, steps=2), None)


def damaged(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        record = json.loads(path.read_text())
        change(record)
        path.write_text(json.dumps(record))

    return damage


def put_folder_there(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "there is no diloco_record.json in"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read: Input data was truncated"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-20]), "cannot be read: Input data was truncated"),
    "not text": (lambda path: path.write_bytes(b"\x80\x04K\x01."), "cannot be read: JSON is malformed"),
    "a folder": (put_folder_there, "cannot be read"),
    "of another step": (damaged(lambda r: r.update(iteration=7)), "is of iteration 7, the checkpoint of iteration 8"),
    "of another model": (damaged(lambda r: r.update(layout="x")), "is of another model: layout x, here"),
    "of a later format": (damaged(lambda r: r.update(format=2)), "has format 2; this version reads format 1"),
    "without its format": (damaged(lambda r: r.pop("format")), "missing required field `format`"),
    "short of a fragment": (damaged(lambda r: r["fragments"].pop()), "names 2 anchors for 3 fragments"),
    "of a wrong type": (damaged(lambda r: r.update(iteration="8")), "Expected `int`, got `str` - at `$.iteration`"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_record_that_cannot_be_used_says_why_in_one_line(tmp_path: Path, damage: str) -> None:
    write_record(tmp_path, RECORD)
    spoil, reason = DAMAGES[damage]
    spoil(tmp_path / RECORD_FILE)
    with pytest.raises(UnusableRecord) as caught:
        read(tmp_path)
    assert reason in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_record_larger_than_any_real_one_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / RECORD_FILE).open("wb") as file:
        file.truncate(RECORD_BYTES_MAX + 1)
    with pytest.raises(UnusableRecord, match="is larger than 67108864 bytes"):
        read(tmp_path)


@pytest.mark.parametrize("damage", ["negative version", "negative steps"])
def test_record_with_numbers_that_cannot_be_is_not_used(tmp_path: Path, damage: str) -> None:
    write_record(tmp_path, RECORD)
    field = damage.removeprefix("negative ")
    damaged(lambda record: record["fragments"][0].update({field: -1}))(tmp_path / RECORD_FILE)
    with pytest.raises(UnusableRecord, match=r"at `\$.fragments\[0\]\." + field):
        read(tmp_path)


# -- anchors -----------------------------------------------------------------------------------------------------------


def pieces_of(rank: int, ranks: int) -> PieceMap:
    boxes = QuadraticModel(rank, ranks, start=0.0, target=0.0).boxes(LAYOUT)
    return PieceMap(LAYOUT, PLAN, boxes)


def global_values() -> dict[int, Values]:
    """Tensor number -> values, each element another one."""
    generator = np.random.default_rng(0)
    return {n: generator.standard_normal(spec.shape, dtype=np.float32) for n, spec in enumerate(LAYOUT.tensors)}


def streams(pieces: PieceMap) -> dict[int, Values]:
    """What a rank's anchors are when the global values are `global_values`."""
    values, found = global_values(), {}
    for fragment in range(len(PLAN)):
        parts = [
            values[box.tensor][tuple(slice(a, a + n) for a, n in zip(box.start, box.shape, strict=True))].reshape(-1)
            for box in pieces.fragment_boxes(fragment)
        ]
        found[fragment] = np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
    return found


def written(folder: Path, ranks: int) -> list[AnchorFile]:
    files = []
    for rank in range(ranks):
        pieces = pieces_of(rank, ranks)
        file = write_anchors(folder, rank, pieces, streams(pieces))
        assert file is not None
        files.append(file)
    return files


@pytest.mark.parametrize("saved", [1, 2, 3, 4])
@pytest.mark.parametrize("loaded", [1, 2, 3, 5])
def test_anchors_are_read_by_an_island_with_any_other_layout(tmp_path: Path, saved: int, loaded: int) -> None:
    files = written(tmp_path, saved)
    for rank in range(loaded):
        pieces = pieces_of(rank, loaded)
        expected = streams(pieces)
        found = read_anchors(tmp_path, files, pieces)
        assert found.keys() == expected.keys()
        for fragment, values in expected.items():
            assert found[fragment].tobytes() == values.tobytes()


def test_rank_that_owns_nothing_writes_no_file(tmp_path: Path) -> None:
    assert write_anchors(tmp_path, 0, PieceMap(LAYOUT, PLAN, ()), {}) is None
    assert list(tmp_path.iterdir()) == []


def test_rank_that_owns_nothing_reads_nothing(tmp_path: Path) -> None:
    found = read_anchors(tmp_path, written(tmp_path, 2), PieceMap(LAYOUT, PLAN, ()))
    assert [values.size for values in found.values()] == [0, 0, 0]


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (Path.unlink, "No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes; expected"),
        (flip_last_byte, "is damaged: its checksum is not"),
        (lambda path: path.write_bytes(b"\xff" * path.stat().st_size), "cannot be read"),
    ],
)
def test_damaged_anchors_say_which_file_in_one_line(
    tmp_path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    files = written(tmp_path, 2)
    damage(tmp_path / files[1].name)
    with pytest.raises(UnusableRecord) as caught:
        read_anchors(tmp_path, files, pieces_of(0, 1))
    assert reason in str(caught.value)
    assert files[1].name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rank_reads_only_files_that_have_something_of_it(tmp_path: Path) -> None:
    """Another rank's damaged values are that rank's to tell."""
    files = written(tmp_path, 2)
    flip_last_byte(tmp_path / files[1].name)
    assert read_anchors(tmp_path, files, pieces_of(0, 2)).keys() == {0, 1, 2}


def test_anchors_of_some_ranks_only_are_not_enough(tmp_path: Path) -> None:
    files = written(tmp_path, 2)
    lacking = pieces_of(0, 1).elements(0) + pieces_of(0, 1).elements(1) + pieces_of(0, 1).elements(2)
    lacking -= sum(pieces_of(0, 2).elements(fragment) for fragment in range(3))
    with pytest.raises(UnusableRecord, match=f"lack {lacking} of this rank's elements"):
        read_anchors(tmp_path, files[:1], pieces_of(0, 1))


def test_file_named_outside_the_checkpoint_is_not_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "checkpoint", tmp_path / "elsewhere"
    inside.mkdir()
    outside.mkdir()
    (file,) = written(outside, 1)
    escaping = msgspec.structs.replace(file, name=f"../elsewhere/{file.name}")
    with pytest.raises(UnusableRecord, match="is not a file of the checkpoint"):
        read_anchors(inside, [escaping], pieces_of(0, 1))


def test_same_values_saved_twice_do_not_make_up_for_missing_ones(tmp_path: Path) -> None:
    """What is covered is counted once: two copies of one half are not the whole."""
    files = written(tmp_path, 2)
    with pytest.raises(UnusableRecord, match="lack"):
        read_anchors(tmp_path, [files[0], files[0]], pieces_of(0, 1))
