"""lines.py: files that grow, and files that are replaced."""

from pathlib import Path

import pytest

from swift_diloco.core.files.json_lines import JsonLines, read_status
from swift_diloco.core.formats.status import StatusError, decode
from tests.core.formats.test_status import GOLDEN


def test_a_line_is_given_out_once_and_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = JsonLines(path)
    assert lines.new() == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert lines.new() == [{"a": 1}, {"a": 2}]
    assert lines.new() == []
    with path.open("a") as file:
        file.write(': 3}\n\n"a word"\n')
    assert lines.new() == [{"a": 3}]


def test_a_status_that_is_not_there_yet_is_none(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) is None
    path.write_bytes(GOLDEN)
    assert read_status(path) == decode(GOLDEN)
    path.write_text('{"t": 3}')
    with pytest.raises(StatusError, match="missing required field"):
        read_status(path)
