"""The graceful stop: what was committed is kept, what can still be finished is, nothing new begins."""

from __future__ import annotations

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import Stopping
from syncer.brain.memory.round import UPLOAD_IDLE_S, Round, Stage
from syncer.brain.memory.state import State
from syncer.brain.rules.closing import Closing
from syncer.brain.rules.durability import Durability, Safety
from syncer.events import Exit

STOP = ("stop", "")


class Halt:
    """The graceful stop. It asks `State.stopping`, not the phase: the final cut may be out while it is on its way."""

    def __init__(self, state: State, closing: Closing, durability: Durability) -> None:
        self._state = state
        self._closing = closing
        self._durability = durability
        self._overdue = False
        self._signalled = False

    def requested(self, *, signal: bool) -> None:
        """Stop gracefully once there is something to lose. A second *signal* does not wait for it; who gives an order,
        or whose service manager signals after an order, has not said that."""
        state = self._state
        again, self._signalled = self._signalled and signal, self._signalled or signal
        if again:
            self._end(1, "told to stop a second time")
            return
        if state.stopping:
            state.log("info", "told to stop again; the stop is on its way, and a second signal would end it at once")
            return
        state.stopping = True
        if state.values is None:
            self._end(0, "told to stop before training began")
            return
        state.log("info", f"told to stop: {len(state.rounds)} open rounds get {state.settings.shutdown_timeout_s:g} s")
        state.deadlines.set(STOP, state.now + state.settings.shutdown_timeout_s)

    def abandon_hopeless(self) -> None:
        """Give up rounds that nobody will answer."""
        if self._state.stopping:
            hopeless = [r for r in self._state.rounds.values() if self._hopeless(r)]
            self._abandon(hopeless, "no island is left to answer it")

    def consider(self) -> None:
        """End when no round is left and what there is is safe."""
        state = self._state
        if not state.stopping:
            return
        if state.rounds:
            if self._overdue and self._durability.stuck:
                self._end(1, f"told to stop; computed outer steps could not be written: {state.save_fault}")
            return
        match self._durability.safety(final=bool(state.final)):
            case Safety.SAFE:
                self._end(0, "told to stop")
            case Safety.FAILED:
                self._end(1, f"told to stop; the last checkpoint could not be written: {state.save_fault}")
            case Safety.UNWRITTEN:
                self._durability.write(final=bool(state.final))
            case Safety.WRITING:
                pass

    def time_out(self) -> None:
        """Gathering rounds had their time, and so had a disk that computed ones wait for."""
        self._overdue = True
        gathering = [r for r in self._state.rounds.values() if r.stage is Stage.GATHERING]
        self._abandon(gathering, f"not complete within {self._state.settings.shutdown_timeout_s:g} s of the stop")

    def _hopeless(self, gathered: Round) -> bool:
        """No complete delta, none that makes progress, and no connected member."""
        state = self._state
        if gathered.stage is not Stage.GATHERING or gathered.answered:
            return False
        if any(state.now < answer.progressed_at + UPLOAD_IDLE_S for answer in gathered.answers.values()):
            return False
        return not any(state.roster.islands[island].linked for island in gathered.members)

    def _abandon(self, given_up: list[Round], reason: str) -> None:
        """Take rounds back, the newest first. One before a round that goes on becomes void, so that the order stays."""
        state = self._state
        for gathered in reversed(given_up):
            if gathered.t == state.launched:
                self._closing.take_back(gathered, reason)
            else:
                self._closing.close_void(gathered, reason)

    def _end(self, code: int, reason: str) -> None:
        state = self._state
        for member in sorted(state.roster.generations.values(), key=lambda m: m.island):
            state.send(member, Stopping(state.session, member.generation, reason))
        state.tape(tape_lines.Stopped(reason=reason))
        leave(state, Exit(code, reason))


def leave(state: State, how: Exit) -> None:
    """End the process; nothing is handled after it."""
    state.exited = True
    state.log("info", f"the syncer ends: {how.reason}")
    state.do(how)
