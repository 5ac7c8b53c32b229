"""The command line of the simulation."""

from __future__ import annotations

import json

import pytest

from swift_diloco.cli import main
from swift_diloco.simulate.fleets import paper

SMALL = ["simulate", "--islands", "1,2", "--fragments", "2", "--sync-every-steps", "4", "--hours", "0.02"]


def test_a_fleet_is_told_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 0
    told = capsys.readouterr().out
    head, one, two = told.splitlines()[:3]
    assert head.split()[:4] == ["islands", "chips", "mode", "goodput"]
    assert one.split()[:3] == ["1", "256", "elastic"] and two.split()[:3] == ["2", "512", "elastic"]
    assert "pushed" in told and "goodput: chip time" in told


def test_json_is_one_object_with_a_row_per_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["fleet"]["islands"] for row in rows] == [1, 2]
    assert all(0.9 < row["goodput"] <= row["utilisation"] <= 1.0 for row in rows)
    assert rows[1]["pushed_bytes"] > 0 and rows[1]["fleet"]["mode"] == "elastic"


def test_the_papers_setting_is_one_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paper, "CASES", paper.CASES[3:5])
    assert main(["simulate", "--preset", "paper", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["chips"], row["islands"], row["mode"], row["paper_goodput"]) for row in rows] == [
        (1_200_000, 1, "elastic", 0.58),
        (1_200_000, 1, "plain", 0.27),
    ]
    assert all(abs(row["goodput"] - row["paper_goodput"]) < paper.TOLERANCE for row in rows)


def test_the_papers_table_says_what_was_assumed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paper, "CASES", paper.CASES[3:4])
    assert main(["simulate", "--preset", "paper"]) == 0
    told = capsys.readouterr().out
    assert "58 %" in told and "difference" in told and "fitted to the nine figures" in told


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--islands", "0"], "--islands 0: expected 1 to 64"),
        (["--islands", "two"], "expected a whole number"),
        (["--chips", "4"], "--group-chips 8 is above --chips 4"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["worlds", "--seeds", "0"], "--seeds 0: expected 1 to"),
        (["worlds", "--plan", "/nowhere"], "cannot read the plan /nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *words]) == 2
    told = capsys.readouterr().err
    assert text in told and told.count("\n") == 1
