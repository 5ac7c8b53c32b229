"""`swift-diloco simulate worlds`: counts, failures and stories."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_diloco.cli import main
from swift_diloco.simulate.worlds import cli
from swift_diloco.simulate.worlds.cli import WorldEnd
from swift_diloco.simulate.worlds.plans import plan_json, rough_plan


def test_worlds_tell_how_many_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "worlds", "--seeds", "3", "--calm"]) == 0
    assert capsys.readouterr().out == "3 worlds, 0 failures; faults that happened: none\n"


def test_one_world_tells_its_story_and_replays_from_its_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "worlds", "--seed", "3", "--seeds", "1"]) == 0
    story = capsys.readouterr().out
    plan = tmp_path / "plan.json"
    plan.write_text(plan_json(rough_plan(3)), encoding="utf-8")
    assert main(["simulate", "worlds", "--plan", str(plan)]) == 0
    assert capsys.readouterr().out == story
    assert story.splitlines()[0] == plan.read_text(encoding="utf-8") and "joined the syncer" in story


def test_a_world_that_fails_is_told_with_its_seed_and_the_command_exits_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcomes = [
        WorldEnd(4, "", {"cut": 2}),
        WorldEnd(5, "Violation: twice", {"cut": 1, "kill": 1}),
        WorldEnd(6, "", {}),
    ]
    assert cli._report(outcomes) == 1
    assert capsys.readouterr().out.splitlines() == [
        "seed 5 failed: Violation: twice",
        "3 worlds, 1 failures; faults that happened: cut 3, kill 1",
    ]


def test_file_that_is_no_plan_is_a_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    assert main(["simulate", "worlds", "--plan", str(plan)]) == 2
    assert f"{plan} is not a plan as this command prints one" in capsys.readouterr().err
