"""What the callbacks of all trainers have in common: building the island on all ranks or on none, parking before a
step, ending at the last one, and leaving well.

Whatever an event raises closes the island first. Our own errors then end the process without a traceback: a user's
mistake is told once, by rank 0, with exit code 2. Knows no trainer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from swift_diloco.core.errors import DilocoError, InternalError, UserError, exit_with, one_line
from swift_diloco.core.settings.island_settings import IslandSettings, require_syncer
from swift_diloco.island.island import Instruction, Island, JobFacts
from swift_diloco.island.ranks.rank_group import RankGroup
from swift_diloco.island.ranks.together import all_or_none
from swift_diloco.trainers.embedded.life import OwnSyncer
from swift_diloco.trainers.embedded.process import EmbeddedSyncer
from swift_diloco.trainers.job import ensure_instance, wants_own_syncer

logger = logging.getLogger("swift_diloco")


class Shell:
    """One per callback."""

    def __init__(self) -> None:
        self._group: RankGroup | None = None
        self._island: Island | None = None
        self._own_syncer: OwnSyncer | None = None

    @property
    def island(self) -> Island:
        """The island; only after `begin`."""
        if self._island is None:
            raise InternalError("the training has not begun")
        return self._island

    @property
    def group(self) -> RankGroup:
        """The island's ranks; only after `begin`."""
        if self._group is None:
            raise InternalError("the training has not begun")
        return self._group

    @property
    def instruction(self) -> Instruction:
        """What the trainer must do, as of the latest boundary."""
        return self.island.instruction

    def begin(self, group: RankGroup, build: Callable[[], Island]) -> None:
        """Build the island on every rank or fail on all, then join and install the initial values. Collective."""
        self._group = group
        self._island = all_or_none(group, build)
        try:
            self._island.start()
        except BaseException:
            if self._own_syncer is not None:
                self._own_syncer.island_failed_to_join()
            raise

    def begin_job(self, settings: IslandSettings, group: RankGroup, folder: Path, step: int) -> JobFacts:
        """The job's facts, and its own syncer if it is to have one; `folder` is its run folder."""
        address: Callable[[], str] = partial(require_syncer, settings)
        if wants_own_syncer(settings) and group.rank == 0:
            self._own_syncer = OwnSyncer(EmbeddedSyncer(folder, settings))
            address = self._own_syncer.address
        revive = self._own_syncer.revive if self._own_syncer is not None else None
        instance = ensure_instance(folder, settings.island_id) if group.rank == 0 else ""
        return JobFacts(step=step, instance=instance, address=address, revive=revive, folder=folder)

    def gate(self, save: Callable[[], None]) -> Instruction:
        """Park before a step while the run is paused; `save` makes the saves that are ordered meanwhile. Collective."""
        while (now := self.island.step_begins()).save and not now.stop:
            save()
        return now

    def finish(self, step: int) -> bool:
        """At the last step: wait for the final cut and install it, unless this job alone was told to stop. Says whether
        the model has it. Collective."""
        for_all = self.instruction.final
        if for_all:
            self.island.finish(step)
        return for_all

    def end(self) -> None:
        """The trainer's last save is durable: leave. Collective."""
        self.island.saved()
        self.island.close()

    def guard(self, event: Callable[[], None]) -> None:
        """Run `event`; what it raises closes the island and ends the process as its kind asks for."""
        try:
            event()
        except BaseException as error:
            self.close(error)
            if isinstance(error, DilocoError) and not isinstance(error, InternalError):
                self._leave(error)
            raise

    def close(self, error: BaseException) -> None:
        """Tell the syncer that this island ends, and why. Idempotent."""
        if self._island is not None:
            self._island.close(error)

    def _leave(self, error: DilocoError) -> NoReturn:
        if self._group is None or self._group.rank == 0:
            exit_with(error)
        if not isinstance(error, UserError):  # a user's mistake is the same on all ranks, and told once
            logger.error("rank %d: %s", self._group.rank, one_line(error))
        raise SystemExit(error.exit_code)
