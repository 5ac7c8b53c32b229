"""lines.py: files that grow, and files that are replaced."""

from pathlib import Path

from swift_diloco.core.files.json_lines import JsonLines, read_status


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


def test_a_status_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) == {}
    path.write_text('{"t": 3}')
    assert read_status(path) == {"t": 3}
