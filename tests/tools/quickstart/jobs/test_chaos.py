"""chaos.py: the plan is carried out in order, each part at its moment, and judged afterwards."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from swift_diloco.tools.quickstart.folder import QuickstartFolder
from swift_diloco.tools.quickstart.jobs import chaos, commands
from swift_diloco.tools.quickstart.jobs.chaos import Chaos
from swift_diloco.tools.quickstart.jobs.commands import TrainingRecipe
from swift_diloco.tools.quickstart.jobs.supervisor import JobCommand
from swift_diloco.tools.quickstart.result.figures import parse_tape
from tests.tools.quickstart import samples

RECIPE = TrainingRecipe(steps=100, chaos=True)
ADDRESS = "tcp://127.0.0.1:29999"


@dataclass
class Stage:
    """A run folder whose processes are played by the test."""

    folder: QuickstartFolder
    killed: list[str] = field(default_factory=list)
    started: dict[str, JobCommand] = field(default_factory=dict)
    syncer: subprocess.Popen[bytes] | None = None
    again: int | None = None
    """The syncer that island 0 has started again."""

    def kill(self, name: str) -> None:
        """The supervisor's."""
        self.killed.append(name)

    def trained(self, island: int, steps: int, saved: int = 0) -> None:
        output = self.folder.output(commands.island_name(island))
        samples.write_lines(output / "logging.jsonl", samples.log_rows(steps))
        if saved:
            (output / f"checkpoint-{saved}").mkdir()
            (output / f"checkpoint-{saved}" / "diloco_record.json").touch()

    @property
    def living(self) -> int | None:
        """The process that holds the run folder."""
        assert self.syncer is not None
        return self.syncer.pid if self.syncer.poll() is None else self.again


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(QuickstartFolder(tmp_path))
    stage.syncer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    monkeypatch.setattr(commands, "trainer_program", lambda trainer: f"/bin/{trainer}")
    monkeypatch.setattr(chaos, "living_address", lambda folder: ADDRESS)
    monkeypatch.setattr(chaos, "living_pid", lambda folder: stage.living)
    yield stage
    stage.syncer.kill()
    stage.syncer.wait()


def chaos_of(stage: Stage) -> Chaos:
    supervisor: Any = stage
    return Chaos(stage.folder, RECIPE, supervisor, lambda command, name: stage.started.update({name: command}))


def test_the_plan_waits_for_its_moments_and_happens_once(stage: Stage) -> None:
    assert stage.syncer is not None
    plan = chaos_of(stage)
    plan.tick()
    stage.trained(1, 29, saved=24)
    plan.tick()
    stage.trained(1, 50, saved=48)
    plan.tick()
    assert not stage.killed, "two steps past its checkpoint"
    stage.trained(1, 51)
    plan.tick()
    assert stage.killed == ["island-1"] and list(stage.started) == ["island-1 again"]
    assert stage.syncer.poll() is None
    again = stage.started["island-1 again"]
    assert again.argv[again.argv.index("--mcore_model") + 1].endswith("checkpoint-48")
    stage.trained(0, 60)
    plan.tick()
    assert stage.syncer.wait(5) == -signal.SIGKILL
    plan.tick()
    assert len(plan.moments) == 3, "it is not back yet"
    stage.again = 1
    plan.tick()
    plan.tick()
    assert list(stage.started) == ["island-1 again"]
    assert [moment.step for moment in plan.moments] == [51, 51, 60, 60]
    assert plan.first_life[-1].step == 51


def test_what_was_killed_must_have_come_back(stage: Stage) -> None:
    plan = chaos_of(stage)
    plan.folder.syncer.mkdir()
    tape = parse_tape(samples.tape_lines())
    plan.folder.tape.write_text("")
    back, once = plan.checks(tape)
    assert not back.passed and "the run ended too soon" in back.detail and once.passed
    plan.moments = [chaos.Incident(samples.BEGIN_S + 2.5, 10, f"thing {i}") for i in range(4)]
    tape = parse_tape([*samples.tape_lines(), samples.resumed(6.8, 5)])
    back, _ = plan.checks(tape)
    assert back.passed and back.detail == "thing 0; thing 1; thing 2; thing 3"
    assert [each.time_s for each in plan.happened(tape)] == [2.5] * 4


def test_the_newest_checkpoint_is_the_one_with_a_record(tmp_path: Path) -> None:
    assert chaos.newest_checkpoint(tmp_path) is None
    for step in (8, 9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (8, 10):
        (tmp_path / f"checkpoint-{step}" / "diloco_record.json").touch()
    assert chaos.newest_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
