"""What ms-swift's Megatron trainer calls: the thin shell between its events and the island.

User callbacks run before ms-swift's own `default_flow`: at `on_step_end` the iteration is advanced and nothing is saved
yet, so what is installed here is inside the checkpoint of the same iteration, and a changed `args.train_iters` ends the
training through ms-swift's own flow. `train_iters` is read at every step: a streaming job changes it when its data
ends.

Knows when things happen; the island knows what to do, and the pieces how.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NoReturn

from swift.megatron.callbacks import MegatronCallback
from swift.megatron.utils import maybe_finalize_async_save

from swift_diloco.core.errors import DilocoError, InternalError, UserError, exit_with, one_line
from swift_diloco.core.settings import IslandSettings, load_island_settings, require_syncer
from swift_diloco.island import Island, JobFacts
from swift_diloco.logs import make_logs_visible
from swift_diloco.megatron.agree import all_or_none
from swift_diloco.megatron.group import TorchGroup
from swift_diloco.megatron.job import instance_of, run_folder, wants_own_syncer
from swift_diloco.megatron.own_syncer import OwnSyncer
from swift_diloco.megatron.pieces import MegatronPieces
from swift_diloco.megatron.tokens import TokenCounter

logger = logging.getLogger("swift_diloco")


class DilocoCallback(MegatronCallback):  # type: ignore[misc]
    """`--callbacks diloco`."""

    island_type: ClassVar[Callable[..., Island]] = Island

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._group: TorchGroup | None = None
        self._tokens: TokenCounter | None = None
        self._island: Island | None = None
        self._own_syncer: OwnSyncer | None = None

    def on_train_begin(self) -> None:
        """Join: every rank builds its part or all fail, then the island waits for the initial cut and installs it."""
        make_logs_visible()
        self._guard(self._begin)

    def on_step_end(self) -> None:
        """A local step boundary, and the end of the training at the last one: the final cut is in the last save."""
        self._guard(self._step_ended)

    def on_train_end(self) -> None:
        """The trainer has saved. Asynchronous saves, which ms-swift flushes only after this event, are flushed here."""
        self._guard(self._trained)

    def _begin(self) -> None:
        group = self._group = TorchGroup()
        self._island = all_or_none(group, lambda: self._build(group))
        try:
            self._island.start()
        except BaseException:
            if self._own_syncer is not None:
                self._own_syncer.island_failed_to_join()
            raise

    def _build(self, group: TorchGroup) -> Island:
        args, state = self.args, self.state
        if state.iteration >= args.train_iters:
            raise UserError(
                f"nothing is left to train: the checkpoint is at iteration {state.iteration} of {args.train_iters}; "
                "expected more in --train_iters or --num_train_epochs"
            )
        settings = load_island_settings({}, os.environ)
        logger.setLevel(settings.log_level.upper())
        pieces = MegatronPieces(self.trainer, group)
        self._tokens = TokenCounter(group)
        self._tokens.attach(self.trainer)
        return type(self).island_type(settings, pieces, group, self._job(settings, group))

    def _job(self, settings: IslandSettings, group: TorchGroup) -> JobFacts:
        folder = run_folder(self.args, settings)
        address: Callable[[], str] = partial(require_syncer, settings)
        if wants_own_syncer(settings) and group.rank == 0:
            self._own_syncer = OwnSyncer(folder, settings)
            address = self._own_syncer.address
        instance = instance_of(folder, settings.island_id) if group.rank == 0 else ""
        return JobFacts(step=self.state.iteration, instance=instance, address=address)

    def _step_ended(self) -> None:
        if self._island is None or self._tokens is None:
            raise InternalError("a step ended before the training began")
        step = self.state.iteration
        work = self._tokens.take()
        verdict = self._island.step_ended(step, trained=work.trained, tokens=work.tokens)
        if verdict.stop:
            self.args.train_iters = step
        if step >= self.args.train_iters:
            self._island.finish(step)

    def _trained(self) -> None:
        if self._island is None or self._group is None:
            raise InternalError("the training ended before it began")
        maybe_finalize_async_save(self.args, blocking=True)
        self._island.saved()
        self._island.close()
        self._group.close()

    def _guard(self, event: Callable[[], None]) -> None:
        """Run `event`. What it raises closes the island first; our own errors end the process without a traceback."""
        try:
            event()
        except BaseException as error:
            if self._island is not None:
                self._island.close(error)
            if isinstance(error, DilocoError) and not isinstance(error, InternalError):
                self._leave(error)
            raise

    def _leave(self, error: DilocoError) -> NoReturn:
        if self._group is None or self._group.rank == 0:
            exit_with(error)
        if not isinstance(error, UserError):  # a user's mistake is the same on all ranks, and told once
            logger.error("rank %d: %s", self._group.rank, one_line(error))
        raise SystemExit(error.exit_code)
