"""What ms-swift's Megatron trainer calls: the thin shell between its events and the island.

User callbacks run before ms-swift's own `default_flow`: at `on_step_end` the iteration is advanced and nothing is saved
yet, so what is installed here is inside the checkpoint of the same iteration, and a changed `args.train_iters` ends the
training through ms-swift's own flow. `train_iters` is read at every step: a streaming job changes it when its data
ends. `default_flow` only ever sets `should_save`, so a save asked for here is done.

Knows when things happen; the island knows what to do, and the pieces how.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from swift.megatron.callbacks import MegatronCallback
from swift.megatron.utils import disable_forward_pre_hook, enable_forward_pre_hook, maybe_finalize_async_save

from swift_diloco.core.errors import InternalError, UserError
from swift_diloco.core.settings.island_settings import load_island_settings
from swift_diloco.island.files.record_files import forget_record
from swift_diloco.island.island import Island
from swift_diloco.island.ranks.torch_group import TorchGroup
from swift_diloco.trainers.callback_shell import Shell
from swift_diloco.trainers.job import run_folder
from swift_diloco.trainers.logs import make_logs_visible
from swift_diloco.trainers.megatron.loaded_checkpoint import loaded_checkpoint
from swift_diloco.trainers.megatron.pieces import MegatronPieces
from swift_diloco.trainers.megatron.schedule import catch_up
from swift_diloco.trainers.megatron.step_work import TokenCounter

logger = logging.getLogger("swift_diloco")


class DilocoCallback(MegatronCallback):  # type: ignore[misc]
    """`--callbacks diloco`."""

    island_type: ClassVar[Callable[..., Island]] = Island

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._shell = Shell()
        self._tokens: TokenCounter | None = None

    # -- the trainer's events ------------------------------------------------------------------------------------------

    def on_train_begin(self) -> None:
        """Join: every rank builds its part or all fail, then the island waits for the initial cut and installs it."""
        make_logs_visible()
        self._shell.guard(self._begin)

    def on_step_begin(self) -> None:
        """The second gate: a paused island that was ordered to save has saved, and parks again before it trains."""
        self._shell.guard(self._step_begins)

    def on_step_end(self) -> None:
        """A local step boundary, and the end of the training at the last one: the final cut is in the last save."""
        self._shell.guard(self._step_ended)

    def on_save(self, output_dir: str) -> None:
        """A checkpoint was written, or is being written in the background: the island's record goes beside it."""
        self._shell.guard(lambda: self._saved(Path(output_dir)))

    def on_train_end(self) -> None:
        """The trainer has saved. Asynchronous saves, which ms-swift flushes only after this event, are flushed here."""
        self._shell.guard(self._trained)

    # -- what they mean ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        group = TorchGroup()
        self._shell.begin(group, lambda: self._build(group))
        step = self.state.iteration
        if step < self.args.train_iters and not self._shell.gate(self._save_now).stop:
            return
        # The job was resumed at its last iteration, or met the end of the run: ms-swift trains and saves nothing.
        self.args.train_iters = min(step, self.args.train_iters)
        self._shell.finish(step)
        self._save_now()

    def _build(self, group: TorchGroup) -> Island:
        args, step = self.args, self.state.iteration
        if step == 0 >= args.train_iters:
            raise UserError("nothing is to be trained: expected --train_iters or --num_train_epochs above 0")
        settings = load_island_settings({}, os.environ)
        logger.setLevel(settings.log_level.upper())
        pieces = MegatronPieces(self.trainer, group)
        self._tokens = TokenCounter(group)
        self._tokens.attach(self.trainer)
        self._forget_records_before_saves(group)
        if settings.lr_resume == "on" and catch_up(self.trainer.opt_param_scheduler, step, args.global_batch_size):
            logger.info("the learning rate schedule was fresh; it is at iteration %d now", step)
        folder = run_folder(Path(args.output_dir), settings, versioned=bool(args.add_version))
        job = replace(self._shell.begin_job(settings, group, folder, step), resumed_from=loaded_checkpoint(args, step))
        return type(self).island_type(settings, pieces, group, job)

    def _forget_records_before_saves(self, group: TorchGroup) -> None:
        """A checkpoint may be written over one of an earlier life, whose record must not outlive a crash meanwhile."""
        original, args, state = self.trainer.save_checkpoint, self.args, self.state

        def save_checkpoint() -> None:
            if group.rank == 0:
                forget_record(Path(args.output_dir) / f"checkpoint-{state.iteration}")
            original()

        self.trainer.save_checkpoint = save_checkpoint

    def _step_begins(self) -> None:
        if self._shell.gate(self._save_now).stop:
            self.args.train_iters = self.state.iteration + 1  # the step that comes cannot be called off any more

    def _step_ended(self) -> None:
        if self._tokens is None:
            raise InternalError("a step ended before the training began")
        step = self.state.iteration
        work = self._tokens.take()
        now = self._shell.island.step_ended(step, trained=work.trained, tokens=work.tokens)
        if now.save:
            self.state.should_save = True
        if now.stop:
            self.args.train_iters = step
        if step >= self.args.train_iters:
            self._shell.finish(step)

    def _save_now(self) -> None:
        """Write a checkpoint outside a step, as ms-swift's `run_train_step` does at the end of one."""
        trainer = self.trainer
        maybe_finalize_async_save(self.args, blocking=True)  # the same step may be on its way to the same folder
        hooked = trainer._pre_hook_enabled
        if hooked:
            disable_forward_pre_hook(trainer.wrapped_models)
        trainer.save_checkpoint()
        trainer.call_event("on_save", output_dir=trainer.state.last_model_checkpoint)
        if hooked:
            enable_forward_pre_hook(trainer.wrapped_models)

    def _saved(self, folder: Path) -> None:
        # ms-swift has rotated checkpoints away by now, on rank 0: with few to keep and a best one, even this one.
        (still_there,) = self._shell.group.all_true([folder.is_dir()])
        if still_there:
            self._shell.island.save(folder, self.state.iteration)
        elif self._shell.group.rank == 0:
            logger.warning("%s is gone already (--save_total_limit): no sync record is written", folder)

    def _trained(self) -> None:
        maybe_finalize_async_save(self.args, blocking=True)
        self._shell.end()
