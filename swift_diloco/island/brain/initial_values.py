"""Whether an island gives the initial values to a syncer that has none, and when.

Pure. A fresh island gives its values at once. One that has global values is asked because the syncer was started
without its state: it first lets the operator bring that back.
"""

from __future__ import annotations

from swift_diloco.core.formats.messages import InitWanted
from swift_diloco.island.brain.stages import Profile
from swift_diloco.island.events import Effect, Log, ProvideInit


class InitialValues:
    """What became of the syncer's question for them, in the present generation."""

    def __init__(self, profile: Profile) -> None:
        waits = profile.initial_cut_timeout_s
        self._probe_s = min(profile.init_probe_s, waits) if waits > 0 else profile.init_probe_s
        """How long the syncer must ask; no longer than this island would wait for initial values."""
        self._asked: tuple[float, InitWanted] | None = None
        self.provided = False
        """They are this island's own."""

    def void(self) -> None:
        """The generation is over, and what was asked in it."""
        self._asked, self.provided = None, False

    def ask(self, message: InitWanted, now: float, *, grown: bool) -> list[Effect]:
        """The syncer wants them. `grown`: this island has global values."""
        if not grown:
            return self._provide(message)
        self._asked = (now, message)
        return [
            Log(
                "error",
                "the syncer has no state, but this island has global values: was it started without --resume? "
                f"It gets this island's values if it still asks in {self._probe_s:g} s",
            )
        ]

    def provide_if_due(self, now: float) -> list[Effect]:
        """The syncer has asked for long enough."""
        if self._asked is None or now - self._asked[0] < self._probe_s:
            return []
        return self._provide(self._asked[1])

    def _provide(self, message: InitWanted) -> list[Effect]:
        self._asked, self.provided = None, True
        return [ProvideInit(message.uploads), Log("info", "providing the initial values")]
