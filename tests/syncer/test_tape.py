"""The event tape: whole lines, at once, appended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from syncer.tape import Tape


def test_lines_are_there_at_once_and_appended_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "tape.jsonl"
    with Tape(path, clock=lambda: 12.3456789) as tape:
        tape.write("committed", {"t": 1, "name": "é"})
        assert path.read_text(encoding="utf-8") == '{"time":12.345679,"event":"committed","t":1,"name":"é"}\n'
    with Tape(path, clock=lambda: 13.0) as tape:
        tape.write("void", {})
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["committed", "void"]


def test_file_that_cannot_be_written_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot append to the event tape"), Tape(tmp_path):
        pass


def test_fields_that_are_not_json_are_our_bug_and_write_nothing(tmp_path: Path) -> None:
    with Tape(tmp_path / "tape.jsonl") as tape:
        with pytest.raises(TypeError):
            tape.write("bad", {"value": object()})
        assert (tmp_path / "tape.jsonl").read_text() == ""
