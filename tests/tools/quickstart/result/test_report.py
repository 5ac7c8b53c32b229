"""report.py: every number of report.json, and each check both ways."""

import json
from pathlib import Path
from typing import Any

import pytest

from swift_diloco.tools.quickstart.result.figures import TapeFigures, parse_tape
from swift_diloco.tools.quickstart.result.report import Report, build_report, run_checks, write_json
from tests.tools.quickstart import samples


def good_report() -> Report:
    curves = {1: samples.points(begin=7.1), 0: samples.points()}
    tape = parse_tape(samples.tape_lines())
    return build_report(curves, samples.points(begin=6.9), tape, samples.measured(), samples.facts())


def test_report_json_holds_the_numbers_of_the_files(tmp_path: Path) -> None:
    write_json(tmp_path / "report.json", good_report())
    found = json.loads((tmp_path / "report.json").read_text())
    assert found.pop("checks") and found.pop("passed") is True
    rounded = [{**island, "final_loss": round(island["final_loss"], 4)} for island in found.pop("islands")]
    assert rounded == [
        {"id": 0, "steps": 30, "tokens": 1500, "first_loss": 7.0, "final_loss": 4.55},
        {"id": 1, "steps": 30, "tokens": 1800, "first_loss": 7.1, "final_loss": 4.65},
    ]
    alone = found.pop("alone")
    assert alone == {"steps": 30, "final_loss": pytest.approx(4.45), "held_out_loss": 5.1}
    assert found == {
        "format": 1,
        "moments": [],
        "held_out_loss_before": 7.5,
        "held_out_loss_after": 5.0,
        "outer_steps": 6,
        "late_contributions": 1,
        "refused_pushes": 1,
        "bytes_pushed": 12 * 4096,
        "bytes_fetched": 20 * 4096,
        "final_digests": {"0": "ab", "1": "ab"},
        "parameters": 1234567,
        "examples": 4463,
        "held_out_examples": 256,
        "seconds": 120.0,
        "commands": {"island-0": ["megatron", "sft", "--system", "<b>&</b>"], "alone": ["megatron", "sft"]},
    }


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({}, []),
        ({"held_out_loss_after": 6.75, "alone_held_out_loss": 7.0}, ["the islands learned"]),
        ({"held_out_loss_after": 6.74, "alone_held_out_loss": 7.0}, []),
        ({"held_out_loss_after": 5.21}, ["together as good as alone"]),
        ({"held_out_loss_after": 5.20}, []),
        ({"final_digests": {0: "ab", 1: "cd"}}, ["one model at the end"]),
    ],
)
def test_each_check_fails_for_its_own_reason(changes: dict[str, Any], failing: list[str]) -> None:
    checks = run_checks(samples.measured(**changes), parse_tape(samples.tape_lines()))
    assert [check.name for check in checks if not check.passed] == failing


def test_a_run_without_outer_steps_does_not_pass() -> None:
    failed = [check.name for check in run_checks(samples.measured(), TapeFigures()) if not check.passed]
    assert failed == ["outer steps were taken"]
