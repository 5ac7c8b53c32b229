"""What ms-swift's transformers trainer calls: the thin shell between its events and the island.

User callbacks run after the trainer's own flow control: at `on_step_end` it has decided whether to save and whether to
stop, but nothing is logged, evaluated or saved yet. So what is installed there is inside the checkpoint of the same
step, and the end of the training can be seen. A training may also end outside a step (early stopping, `max_epochs`,
data that ran out); then `on_epoch_end` is the last event before the last save.

Knows when things happen; the island knows what to do, and the pieces how.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from swift.callbacks import TrainerCallback

from swift_diloco.core.errors import InternalError
from swift_diloco.core.settings.island_settings import load_island_settings
from swift_diloco.island.island import Island
from swift_diloco.island.ranks.together import all_or_none
from swift_diloco.island.ranks.torch_group import LoneRank, TorchGroup, ranks_of_this_job
from swift_diloco.trainers.callback_shell import Shell
from swift_diloco.trainers.hf.master_files import save_masters
from swift_diloco.trainers.hf.metrics import report_to
from swift_diloco.trainers.hf.pieces import HfPieces, Loaded
from swift_diloco.trainers.hf.schedule import catch_up
from swift_diloco.trainers.hf.step_work import WorkCounter
from swift_diloco.trainers.hf.supported import check_job, check_model
from swift_diloco.trainers.job import run_folder
from swift_diloco.trainers.logs import make_logs_visible

VERSIONED = re.compile(r"v\d+-\d{8}-\d{6}")
"""The folder that `--add_version true` puts below the output folder for each start (`add_version_to_work_dir`)."""

logger = logging.getLogger("swift_diloco")


class DilocoCallback(TrainerCallback):  # type: ignore[misc]
    """`--callbacks diloco`."""

    island_type: ClassVar[Callable[..., Island]] = Island

    def __init__(self, args: Any, trainer: Any) -> None:
        super().__init__(args, trainer)
        check_job(trainer, args)
        self._settings = load_island_settings({}, os.environ)
        self._shell = Shell()
        self._pieces: HfPieces | None = None
        self._work: WorkCounter | None = None
        self._ended_at: int | None = None
        self._has_final = False

    # -- the trainer's events ------------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Join: every rank builds its part or all fail, then the island waits for the initial cut and installs it."""
        make_logs_visible()
        logger.setLevel(self._settings.log_level.upper())
        self._shell.guard(lambda: self._begin(control))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The second gate: a paused island that was ordered to save has saved, and parks again before it trains."""
        self._shell.guard(lambda: self._step_begins(control))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Gradients are clipped, the optimizer comes next."""
        if self._work is not None and self._pieces is not None:
            self._work.optimizer_is_due(self._pieces.parameters.values())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A local step boundary, and the end of the training at the last one: the final cut is in the last save."""
        self._shell.guard(lambda: self._step_ended(control))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint was written: the island's record goes beside it."""
        self._shell.guard(lambda: self._saved(Path(args.output_dir) / f"checkpoint-{state.global_step}"))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The end of a training that did not end at a step."""
        if control.should_training_stop or round(state.epoch or 0) >= state.num_train_epochs:
            self._shell.guard(lambda: self._end(control))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer has saved, and may have loaded its best checkpoint into the model."""
        self._shell.guard(self._trained)

    # -- what they mean ------------------------------------------------------------------------------------------------

    def _begin(self, control: Any) -> None:
        group = ranks_of_this_job()
        self._shell.begin(group, lambda: self._build(group))
        report_to(self.trainer, self._shell.island.metrics, group)
        state = self.trainer.state
        if state.global_step >= state.max_steps or self._shell.gate(self._save_now).stop:
            self._end_without_a_step(control)

    def _end_without_a_step(self, control: Any) -> None:
        """The job was resumed at its last step, or met the end of the run. A trainer that goes on trains one more step,
        so what is left is done here and the process ends well."""
        self._end(control)
        if _saves(self.args):
            self._save_now()
        logger.info("nothing is left to train at step %d", self.trainer.state.global_step)
        self._trained()
        raise SystemExit(0)

    def _build(self, group: TorchGroup | LoneRank) -> Island:
        trainer, state = self.trainer, self.trainer.state
        check_model(trainer)
        if self._settings.lr_resume == "on" and catch_up(trainer.lr_scheduler, state.global_step):
            logger.info("the learning rate schedule was fresh; it is at step %d now", state.global_step)
        resumed = self.args.resume_from_checkpoint if state.global_step else None
        loaded = Loaded(Path(resumed), state.global_step) if resumed else None
        self._pieces = HfPieces(trainer.model, group, loaded)
        self._work = WorkCounter(group)
        self._work.attach(trainer)
        output = Path(self.args.output_dir)
        folder = run_folder(output, self._settings, versioned=VERSIONED.fullmatch(output.name) is not None)
        job = self._shell.begin_job(self._settings, group, folder, state.global_step)
        job = replace(job, resumed_from=loaded.folder if loaded is not None else None)
        return type(self).island_type(self._settings, self._pieces, group, job)

    def _step_begins(self, control: Any) -> None:
        if self._shell.gate(self._save_now).stop:
            control.should_training_stop = True  # looked at after the micro-batch that comes now; it saves in any case

    def _save_now(self) -> None:
        """Write a checkpoint between two steps, as the trainer does after one."""
        trainer = self.trainer
        trainer._save_checkpoint(trainer.model, None)
        trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)

    def _step_ended(self, control: Any) -> None:
        if self._work is None:
            raise InternalError("a step ended before the training began")
        work = self._work.take(skipped=self.trainer.accelerator.optimizer_step_was_skipped)
        # A job told to stop before this step, which could not be called off, would park here if the run is paused.
        if self._shell.instruction.final:
            step = self.trainer.state.global_step
            self._shell.island.step_ended(step, trained=work.trained, tokens=work.tokens)
        if self._shell.instruction.save:
            control.should_save = True
        if self._shell.instruction.stop:
            control.should_training_stop = True
        if control.should_training_stop:
            self._end(control)

    def _end(self, control: Any) -> None:
        """The last step. Once."""
        if self._ended_at is not None:
            return
        self._ended_at = self.trainer.state.global_step
        self._has_final = self._shell.finish(self._ended_at)
        control.should_save = _saves(self.args)

    def _saved(self, folder: Path) -> None:
        if self._pieces is None:
            raise InternalError("a checkpoint was saved before the training began")
        step, masters, group = self.trainer.state.global_step, self._pieces.masters(), self._shell.group
        if masters and not self.args.save_only_model:
            all_or_none(group, lambda: save_masters(folder, masters, step, group.rank, group.size))
        self._shell.island.save(folder, step)  # last: a checkpoint with a record is whole

    def _trained(self) -> None:
        if self._ended_at is None:
            raise InternalError("the training ended without a last step; the final values were not installed")
        if self._has_final:
            self._tell_which_wins()
        self._shell.end()

    def _tell_which_wins(self) -> None:
        """Say where the run's final values are, when the trainer has others in memory or saved none."""
        state = self.trainer.state
        last = f"{self.args.output_dir}/checkpoint-{self._ended_at}"
        if not _saves(self.args):
            logger.warning("--save_strategy no: the run's final values are in memory only, no file has them")
        elif self.args.load_best_model_at_end and state.best_model_checkpoint not in (None, last):
            logger.warning(
                "--load_best_model_at_end put %s into the model in memory; the run's final values are in %s",
                state.best_model_checkpoint,
                last,
            )


def _saves(args: Any) -> bool:
    return str(getattr(args.save_strategy, "value", args.save_strategy)) != "no"
