"""How a run ends: the last rounds, the final cut and the islands' last saves.

Knows nothing of how rounds gather. The last rounds are the P outer steps launched after every member was done: each
fragment gets exactly one. A member that is not done (a restarted island) takes that back until the final cut is out. A
resumed run waits for the islands of its former life to dial again: they may have learned what only they hold. Its first
rounds wait a moment, too: what all learned during the outage is to be averaged, not added up one by one as they return.
"""

from __future__ import annotations

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import FinalCut
from syncer.brain.memory.phase import Phase
from syncer.brain.memory.roster import Member, Presence
from syncer.brain.memory.state import State
from syncer.brain.rules.durability import Durability, Safety
from syncer.brain.rules.halt import leave
from syncer.brain.rules.late_pushes import LatePushes
from syncer.events import Exit

AWAIT = ("await", "")
RETURN = ("return", "")
RETURN_S = 5.0
"""Islands say Hello every 2 s; who lives and can reach the syncer is back by then."""

LINGER = ("linger", "")


class Finish:
    """Ends the run when every member is done."""

    def __init__(self, state: State, durability: Durability, late: LatePushes) -> None:
        self._state = state
        self._durability = durability
        self._late = late

    def consider(self) -> None:
        """Begin, take back or complete the finish."""
        state, roster = self._state, self._state.roster
        phase = state.phase
        if not phase.carries:
            return
        all_done = roster.done == len(roster.members) and not state.awaited
        if state.last_t is None and all_done and phase is not Phase.PAUSED:
            state.last_t = state.launched + state.fragments
            state.log("info", f"every island is done: the last rounds are outer steps to {state.last_t}")
        elif state.last_t is not None and not all_done:
            state.last_t = None
            self._durability.not_final()
            state.log("info", "an island that is not done has joined: training goes on")
        if state.last_t is not None and state.committed == state.last_t:
            self._late.drop_all("the run is finished")
            safety = self._durability.safety(final=True)
            if safety is Safety.UNWRITTEN:
                self._durability.write(final=True)
            elif safety is not Safety.WRITING:  # On the disk, or that was tried: the cut must go out.
                self._cut()

    def _cut(self) -> None:
        state = self._state
        assert state.values is not None
        state.final = tuple(state.values.present)
        state.tape(tape_lines.Final(t=state.committed, versions=tuple(name.version for name in state.final)))
        state.log("info", f"the final cut is out after outer step {state.committed}")
        state.deadlines.set(LINGER, state.now + state.settings.final_linger_s)
        for member in state.roster.ordered():
            self.tell(member)

    def resume(self, islands: set[int]) -> None:
        """The run goes on. These islands took part in it; those who saw only the syncer end will dial again."""
        state = self._state
        if state.phase is not Phase.FINAL:
            state.awaited, state.returning = islands, True
            state.deadlines.set(RETURN, state.now + RETURN_S)
            state.deadlines.set(AWAIT, state.now + state.settings.island_lease_s)
            return
        # The cut is out again for those who have not saved.
        state.deadlines.set(LINGER, state.now + state.settings.final_linger_s)
        state.log("info", f"the run is finished: the final cut of outer step {state.committed} is served again")

    def stop_pausing(self) -> None:
        """All that live are back by now: rounds need not wait a moment more."""
        self._state.returning = False

    def stop_awaiting(self) -> None:
        """A lease has passed since the run was resumed."""
        missing = sorted(self._state.awaited)
        self._state.awaited.clear()
        if missing:
            self._state.log("warning", f"islands {missing} did not join again within a lease; the run goes on")

    def tell(self, member: Member) -> None:
        """Send the final cut to a member, which then owes its Saved."""
        state = self._state
        state.unsaved.add(member.island)
        state.send(member, FinalCut(state.session, member.generation, state.final))

    def saved(self, member: Member) -> None:
        """An island's last save is durable."""
        self._state.roster.finish(member, Presence.SAVED)
        self._release(member, "every island has saved the final cut")

    def left(self, member: Member) -> None:
        """An island left for good: it will not save."""
        if self._state.phase is Phase.FINAL:
            self._release(member, "every island has saved the final cut or left")

    def _release(self, member: Member, reason: str) -> None:
        state = self._state
        if member.island in state.unsaved:
            state.unsaved.remove(member.island)
            if not state.unsaved:
                leave(state, Exit(0, reason, finished=True))

    def time_out(self) -> None:
        """The islands had their time to save."""
        missing = sorted(self._state.unsaved)
        reason = f"islands {missing} did not say that they had saved within {self._state.settings.final_linger_s:g} s"
        leave(self._state, Exit(0, reason, finished=True, untold=tuple(missing)))
