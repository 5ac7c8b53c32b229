"""Writing and reading the record as one island: all ranks come to the same result, whatever happens to one of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from swift_diloco.core.formats.messages import Contract
from swift_diloco.core.layout.fragments import FragmentPlan, plan_fragments
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import make_layout
from swift_diloco.island.files import record as module
from swift_diloco.island.files.record import NOTHING_RESUMED, ResumedRank, SavedRank, resume, save_record
from swift_diloco.island.files.record_files import (
    RECORD_FILE,
    RECORD_FORMAT,
    AnchorFile,
    Record,
    UnusableRecord,
    read_record,
    write_anchors,
)
from swift_diloco.island.remembered import AnchorRecord, Remembered
from tests.fakes.group import ThreadGroup
from tests.fakes.quadratic import SPECS, QuadraticModel

LAYOUT = make_layout(SPECS)
T = TypeVar("T")
PLAN = plan_fragments(LAYOUT, 2, "binpack")
ANCHORS = (AnchorRecord(4, "d4", 3, 30, True, "g.2"), AnchorRecord(5, "d5"))
RECORD = Record(
    format=RECORD_FORMAT, iteration=8, run="run", layout=LAYOUT.fingerprint, contract=Contract(publish_encoding="bf16"),
    plan=PLAN, fragments=ANCHORS,
)  # fmt: skip


def on_ranks(size: int, body: Callable[[ThreadGroup], T]) -> list[T]:
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(body, ThreadGroup.make(size)))


def pieces_of(group: ThreadGroup) -> PieceMap:
    return PieceMap(LAYOUT, PLAN, QuadraticModel(group.rank, group.size, start=0.0, target=0.0).boxes(LAYOUT))


def save(folder: Path, ranks: int, value: float | None) -> None:
    """Anchors that are `value` everywhere; None: they are not saved."""

    def body(group: ThreadGroup) -> None:
        pieces = pieces_of(group)
        streams = {f: np.full(pieces.elements(f), value, dtype=np.float32) for f in range(len(PLAN))}
        save_record(folder, RECORD, SavedRank(group, pieces, streams if value is not None else {}))

    on_ranks(ranks, body)


def load(folder: Path | None, ranks: int, step: int = 8) -> list[ResumedRank]:
    return on_ranks(ranks, lambda group: resume(folder, step, LAYOUT, pieces_of(group).boxes, group))


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="swift_diloco")
    return caplog


def lines(told: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in told.records]


def test_fresh_start_reads_nothing(told: pytest.LogCaptureFixture) -> None:
    assert load(None, 2) == [NOTHING_RESUMED] * 2
    assert lines(told) == []


@pytest.mark.parametrize(("saved", "loaded"), [(1, 1), (2, 1), (2, 2), (1, 3), (3, 2)])
def test_every_rank_gets_the_record_and_its_own_anchors_under_any_layout(
    tmp_path: Path, told: pytest.LogCaptureFixture, saved: int, loaded: int
) -> None:
    save(tmp_path, saved, 2.5)
    for resumed in load(tmp_path, loaded):
        assert resumed.remembered == Remembered("run", PLAN, ANCHORS, True, "bf16")
        assert all((values == 2.5).all() for values in resumed.anchors.values())
        assert resumed.anchors_for(PLAN) is resumed.anchors
        assert resumed.anchors_for(FragmentPlan(PLAN.fragments[::-1])) == {}
    assert lines(told) == [f"resuming from the record in {tmp_path}, with its anchors"]


def test_record_without_anchors_is_used_without_them(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 2, None)
    assert load(tmp_path, 2) == [ResumedRank(Remembered("run", PLAN, ANCHORS, False, "bf16"))] * 2
    assert lines(told) == [f"resuming from the record in {tmp_path}, with no anchors (its anchors were not saved)"]
    assert [path.name for path in tmp_path.iterdir()] == [RECORD_FILE]


@pytest.mark.parametrize("rank", [0, 1])
def test_anchors_that_one_rank_cannot_use_are_used_by_none(
    tmp_path: Path, told: pytest.LogCaptureFixture, rank: int
) -> None:
    save(tmp_path, 2, 2.5)
    path = tmp_path / f"diloco_anchors_{rank:05d}.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert load(tmp_path, 2) == [ResumedRank(Remembered("run", PLAN, ANCHORS, False, "bf16"))] * 2
    (line,) = lines(told)
    assert line.startswith(f"resuming from the record in {tmp_path}, with no anchors (rank 0: {path} has ")
    assert told.records[0].levelno == logging.WARNING


@pytest.mark.parametrize("what", ["missing", "another iteration", "truncated"])
def test_record_that_cannot_be_used_is_a_cold_start_told_once(
    tmp_path: Path, told: pytest.LogCaptureFixture, what: str
) -> None:
    save(tmp_path, 2, 2.5)
    path = tmp_path / RECORD_FILE
    if what == "missing":
        path.unlink()
    elif what == "truncated":
        path.write_bytes(path.read_bytes()[:100])
    step = 9 if what == "another iteration" else 8
    assert load(tmp_path, 2, step) == [NOTHING_RESUMED] * 2
    (line,) = lines(told)
    assert line.startswith("cold start, local values will be overwritten: ")


def test_crash_between_anchors_and_record_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a checkpoint of an earlier life is written over: its record is not left beside other anchors."""
    save(tmp_path, 1, 1.0)

    class Crashed(BaseException):
        pass

    def crash(folder: Path, record: Record) -> None:
        assert (folder / "diloco_anchors_00000.safetensors").exists()
        raise Crashed

    monkeypatch.setattr(module, "write_record", crash)
    with pytest.raises(Crashed):
        save(tmp_path, 1, 2.0)
    with pytest.raises(UnusableRecord, match="there is no diloco_record"):
        read_record(tmp_path, iteration=8, layout=LAYOUT.fingerprint)
    assert load(tmp_path, 1) == [NOTHING_RESUMED]


def test_disk_that_refuses_one_ranks_anchors_costs_the_record_and_is_told(
    tmp_path: Path, told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = write_anchors

    def full_for_rank_1(folder: Path, rank: int, *rest: object) -> AnchorFile | None:
        if rank == 1:
            raise OSError(28, "No space left on device")
        return original(folder, rank, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "write_anchors", full_for_rank_1)
    save(tmp_path, 2, 2.5)
    assert lines(told) == ["rank 1: the anchors could not be written: [Errno 28] No space left on device"]
    assert not (tmp_path / RECORD_FILE).exists()


def test_disk_that_refuses_the_record_is_told_and_does_not_stop_the_training(
    tmp_path: Path, told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, record: Record) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_record", full)
    save(tmp_path, 2, None)
    (line,) = lines(told)
    assert line == (
        f"no sync record in {tmp_path}, a resume from it will be a cold start: [Errno 28] No space left on device"
    )


def test_values_damaged_for_one_rank_only_are_told_with_that_rank(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 2, 2.5)
    path = tmp_path / "diloco_anchors_00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    assert [resumed.anchors for resumed in load(tmp_path, 2)] == [{}, {}]
    (line,) = lines(told)
    assert f"(rank 1: {path} is damaged: its checksum is not " in line
