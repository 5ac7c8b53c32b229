"""The status file: whole, and not too often."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from swift_diloco.core.files.json_lines import read_status
from swift_diloco.core.formats.status import decode
from syncer.files.status_file import STATUS_INTERVAL_S, StatusFile
from tests.core.formats.test_status import GOLDEN

GIVEN = decode(GOLDEN)


def test_status_is_due_at_first_and_then_once_an_interval(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "status.json")
    assert status.due(100.0)
    status.write(replace(GIVEN, t=1), 100.0)
    assert not status.due(100.0 + STATUS_INTERVAL_S - 0.01)
    assert status.due(100.0 + STATUS_INTERVAL_S)


def test_status_is_replaced_whole_and_leaves_no_other_file(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "status.json")
    status.write(replace(GIVEN, t=1, waiting_for="x" * 1000), 0.0)
    with (tmp_path / "status.json").open() as reader:
        status.write(replace(GIVEN, t=2), 1.0)
        assert json.load(reader)["t"] == 1
    assert read_status(tmp_path / "status.json") == replace(GIVEN, t=2)
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_status_that_cannot_be_written_is_told_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    status = StatusFile(tmp_path / "missing" / "status.json")
    status.write(replace(GIVEN, t=1), 0.0)
    status.write(replace(GIVEN, t=2), 1.0)
    assert caplog.text.count("the status cannot be written") == 1
    (tmp_path / "missing").mkdir()
    status.write(replace(GIVEN, t=3), 2.0)
    assert read_status(status.path) == replace(GIVEN, t=3)
