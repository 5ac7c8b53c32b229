"""The pause: below `min_islands` members nobody trains on, as what they would learn could not be merged (4.13).

The phase of the run says whether it is paused; this module tells the islands when that changes, and their clocks that
the time until then is no step time.
"""

from __future__ import annotations

from swift_diloco.core.formats.messages import Paused, PauseOver
from syncer.brain.memory.phase import Phase
from syncer.brain.memory.roster import Member
from syncer.brain.memory.state import State


class Pause:
    """Tells islands to park and to go on."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._told = 0
        """The `min_islands` for which members were told to park; 0 while they train."""

    def consider(self) -> None:
        """Tell everybody when the run pauses, goes on, or waits for another number of islands."""
        state = self._state
        if not state.phase.carries:
            return
        wanted = state.settings.min_islands if state.phase is Phase.PAUSED else 0
        if wanted == self._told:
            return
        began, self._told = self._told == 0, wanted
        for member in state.roster.ordered():
            if not wanted:
                state.send(member, PauseOver(state.session, member.generation))
                continue
            if began:
                member.clock.interrupt()
            self._tell(member)

    def joined(self, member: Member) -> None:
        """A generation is a member: it may end the pause, or learns of it."""
        told = self._told
        self.consider()
        if told and self._told == told:
            self._tell(member)

    def _tell(self, member: Member) -> None:
        """A member learns of a pause."""
        state = self._state
        missing = state.settings.min_islands - len(state.roster.members)
        state.send(member, Paused(state.session, member.generation, self.reason(), missing))

    def reason(self) -> str:
        """Why the run is paused, in words; empty while it is not."""
        if self._state.phase is not Phase.PAUSED:
            return ""
        return f"{len(self._state.roster.members)} of at least {self._state.settings.min_islands} islands are here"
