"""`--chaos`: kills an island and then the syncer in the middle of the run, has both start again, remembers when.

It decides when and what is started; how a process is killed is the supervisor's matter. Invariant: each of the steps of
the plan happens once, in order; nothing is started again before it has been killed.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from swift_diloco.core.files.run_folder import living_address, living_pid
from swift_diloco.tools.audit.auditing import audit
from swift_diloco.tools.quickstart.folder import QuickstartFolder
from swift_diloco.tools.quickstart.jobs import commands
from swift_diloco.tools.quickstart.jobs.supervisor import JobCommand, Supervisor
from swift_diloco.tools.quickstart.result import losses
from swift_diloco.tools.quickstart.result.figures import TapeFigures
from swift_diloco.tools.quickstart.result.report import Check, Happened

VICTIM = 1
"""The island that is killed; island 0 is the one whose start also started the syncer."""

ISLAND_KILLED_AT, SYNCER_KILLED_AT = 0.3, 0.6
"""Shares of the local steps: of the victim's, and of island 0's."""

STEPS_PAST_SAVE = 3
"""The victim is killed so many steps after a checkpoint, for the kill to cost something."""

MOMENTS = 4
"""Two deaths and two returns."""


@dataclass(frozen=True)
class Incident:
    """Something that was done to the run."""

    at: float
    """Seconds since 1970."""
    step: int
    """Local step of the island that was watched."""
    what: str


def newest_checkpoint(output: Path) -> Path | None:
    """The newest checkpoint with a sync record, which is the last file of one."""
    found = [path.parent for path in output.glob("checkpoint-*/diloco_record.json")]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


@dataclass
class Chaos:
    """Carries the plan out; `tick` is called while the run is waited for."""

    folder: QuickstartFolder
    recipe: commands.TrainingRecipe
    supervisor: Supervisor
    start: Callable[[JobCommand, str], None]
    """Start a command, known in the report under a name of its own. (The syncer is started again by its island.)"""
    moments: list[Incident] = field(default_factory=list)
    first_life: list[losses.Point] = field(default_factory=list)
    """The victim's curve until it was killed."""

    def __post_init__(self) -> None:
        self._plan = self._steps()

    def happened(self, tape: TapeFigures) -> tuple[Happened, ...]:
        """The moments on the clock of the tape."""
        return tuple(Happened(round(moment.at - tape.begin, 3), moment.step, moment.what) for moment in self.moments)

    def checks(self, tape: TapeFigures) -> tuple[Check, ...]:
        """What must hold because something was killed."""
        report = audit(self.folder.tape)
        after = [commit for commit in tape.commits if self.moments and commit.time > self.moments[0].at]
        back = any(part.island == VICTIM and part.steps for commit in after for part in commit.contributions)
        done = "; ".join(moment.what for moment in self.moments) or "nothing was killed: the run ended too soon"
        return (
            Check("the killed came back", len(self.moments) == MOMENTS and tape.resumes == 1 and back, done),
            Check(
                "nothing was merged twice",
                report.ok,
                f"{report.commits} commits stand, {report.lost_commits} were lost with the syncer, "
                f"{report.replayed} local steps were made again, {len(report.violations)} violations",
            ),
        )

    def tick(self) -> None:
        """Go on with the plan as far as its moments have come."""
        next(self._plan, None)

    def _steps(self) -> Iterator[None]:
        """The plan; yields while it waits."""
        victim, recipe = commands.island_name(VICTIM), self.recipe
        output = self.folder.output(victim)
        while (checkpoint := self._ripe(output)) is None:
            yield
        self.first_life = losses.read_points(output)
        self._note(VICTIM, f"island {VICTIM} is killed")
        self.supervisor.kill(victim)
        again = commands.resumed_command(self.folder, recipe, VICTIM, self._address(), checkpoint)
        self.start(again, f"{victim} again")
        self._note(VICTIM, f"island {VICTIM} is started again from {checkpoint.name}")
        while self._step(0) < SYNCER_KILLED_AT * recipe.steps:
            yield
        pid = living_pid(self.folder.syncer)
        if pid is None:
            return  # It has ended, so the run has: the checks will say that this came too late.
        self._note(0, "the syncer is killed")
        os.kill(pid, signal.SIGKILL)
        while living_pid(self.folder.syncer) in (None, pid):
            yield
        self._note(0, "the syncer is started again by island 0, from its checkpoint")

    def _ripe(self, output: Path) -> Path | None:
        """The checkpoint to go on from, once the victim is far enough and past it."""
        step, checkpoint = self._step(VICTIM), newest_checkpoint(output)
        if checkpoint is None or step < ISLAND_KILLED_AT * self.recipe.steps:
            return None
        saved = int(checkpoint.name.rpartition("-")[2])
        return checkpoint if step >= saved + STEPS_PAST_SAVE else None

    def _step(self, island: int) -> int:
        points = losses.read_points(self.folder.output(commands.island_name(island)))
        return points[-1].step if points else 0

    def _address(self) -> str:
        address = living_address(self.folder.syncer)
        assert address is not None, "the run waited for the syncer to listen"
        return address

    def _note(self, island: int, what: str) -> None:
        self.moments.append(Incident(time.time(), self._step(island), what))
