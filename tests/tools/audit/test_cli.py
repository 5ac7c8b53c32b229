"""`swift-diloco audit`: its exit codes, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from swift_diloco.cli import main
from swift_diloco.tools.audit.cli import MEANING, text_of
from swift_diloco.tools.audit.report import AuditReport, Fate
from tests.tools.audit.test_auditing import INIT, commit, dropped, found, joined, pushed


def test_the_command_prints_json_and_exits_with_1_on_a_violation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = pushed("a", 5, 5)
    found(tmp_path, INIT, joined(0), a, commit(1, a))
    assert main(["audit", str(tmp_path / "tape.jsonl"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] and told["merged"] == {"pushes": 1, "steps": 5, "tokens": 50}
    found(tmp_path, INIT, joined(0), a, commit(1, a), commit(2, a))
    assert main(["audit", str(tmp_path / "tape.jsonl")]) == 1
    text = capsys.readouterr().out
    assert "VIOLATED" in text and "(lines 4, 5)" in text


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (([str(tmp_path / "missing")], "cannot read the event tape"), ([], "required: tape")):
        assert main(["audit", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_the_text_has_a_row_per_fate_with_its_meaning_and_ends_in_the_verdict(tmp_path: Path) -> None:
    a, b = pushed("a", 5, 5), pushed("b", 9, 4)
    text = text_of(found(tmp_path, INIT, joined(0), a, commit(1, a), b, dropped(b, "its anchor is held")))
    rows = [next(line.split(maxsplit=4) for line in text if line.startswith(f"  {fate.value} ")) for fate in Fate]
    assert [row[4] for row in rows] == [MEANING[fate] for fate in Fate]
    assert ["merged", "1", "5", "50", "in the global model"] in rows
    assert "  dropped, 1 pushes: its anchor is held" in text
    assert text[-1] == "OK: no unit of work was merged twice, and every push has one fate."


def test_lines_that_were_torn_off_are_told_only_where_there_are_some() -> None:
    assert not any("torn off" in line for line in text_of(AuditReport()))


def test_how_long_rounds_took_is_told_of_those_whose_step_was_taken(tmp_path: Path) -> None:
    taken = replace(commit(1), quorum_s=2.0, round_s=5.0, merge_s=0.25)
    void = replace(commit(2, void=True), quorum_s=50.0, round_s=60.0)
    line = "A round took 5 s (median; at most 5 s), 2 s of them until its quorum and 0.25 s for its merge."
    assert line in text_of(found(tmp_path, INIT, joined(0), taken, void))
    assert not any(each.startswith("A round took") for each in text_of(AuditReport()))
