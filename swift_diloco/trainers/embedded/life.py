"""The embedded syncer, as far as the island that starts it decides its life.

It outlives a crash of the island, whose restart finds it again, and ends by itself after the final cut. When it dies
under a living island, that starts it again at the same port, and it goes on from its checkpoint. It is told to
stop when the user ends the job (Ctrl-C, which torchrun hands on to its ranks), and when the island that started it
could not even join. A SIGTERM tells it nothing: torchrun sends one to rank 0 when another rank has crashed.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

from swift_diloco.core.errors import DilocoError
from swift_diloco.trainers.embedded.process import EmbeddedSyncer

log = logging.getLogger("swift_diloco")

INTERRUPT_STOP_S = 5.0
"""Patience with a syncer that is told to stop, before it is told again; torchrun kills interrupted ranks after 30 s."""


class OwnSyncer:
    """Used on rank 0 of island 0. The constructor starts nothing."""

    def __init__(self, syncer: EmbeddedSyncer) -> None:
        self._syncer = syncer
        self._started_here = False
        self._reviving = threading.Lock()
        self._before: Callable[[int, FrameType | None], object] | int | None = None

    def address(self) -> str:
        """Where the syncer listens; starts one if the run folder has none."""
        was_there = self._syncer.lives()
        address = self._syncer.start_or_find()
        self._started_here = not was_there
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return address

    def revive(self, address: str) -> None:
        """The link to the syncer at `address` broke: if it died, start it again there, from its checkpoint.

        Runs beside the training, one attempt at a time; a syncer that is only out of reach is left alone.
        """
        if self._reviving.acquire(blocking=False):
            threading.Thread(target=self._revive, args=(address,), name="revive the syncer", daemon=True).start()

    def _revive(self, address: str) -> None:
        try:
            if not self._syncer.lives():
                log.warning("the syncer at %s has died; starting it again", address)
                self._syncer.start_or_find(again_at=address)
        except DilocoError as error:
            log.error("the syncer could not be started again: %s", error)
        finally:
            self._reviving.release()

    def island_failed_to_join(self) -> None:
        """Stop the syncer if it was started for this attempt; one that was found there has other work."""
        if self._started_here:
            self._syncer.stop(INTERRUPT_STOP_S)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if self._before is None else self._before)
        self._syncer.stop(INTERRUPT_STOP_S)
        if callable(self._before):
            self._before(number, frame)
