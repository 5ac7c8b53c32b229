"""The coordinator's state in words and as plain data: who waits for whom, and what `status.json` shows.

Reads the state, never changes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from swift_diloco.core.formats.status import CheckpointStatus, LateStatus, MemberStatus, OpenRound, RunStatus
from syncer.brain.memory.phase import PROVIDER, Phase
from syncer.brain.memory.round import Round, Stage
from syncer.brain.memory.state import State

NAMES_MAX = 4
"""Most islands named in a sentence. Beyond it the sentence stays the same while they answer, and is told once."""


def waiting_for(state: State) -> str:
    """For whom or what the run waits, in words."""
    phase, here = state.phase, len(state.roster.members)
    if phase is Phase.ENDED:
        return "nothing: the syncer has ended"
    if phase is Phase.FINAL:
        return f"{islands(state.unsaved)} to save the final cut"
    if phase is Phase.JOINING:
        if here < state.expected:
            return f"islands to join ({here} of {state.expected} are here)"
        return f"island {PROVIDER}, which provides the initial values, to join"
    if phase is Phase.INIT:
        return f"the initial values of island {PROVIDER}"
    if phase is Phase.PAUSED:
        least = state.settings.min_islands
        return f"{least - here} more island(s) to join: the run is paused below {least}"
    if state.starting and state.saving:
        return f"{state.saving}, which comes before the first round"
    gathered = state.rounds.get(state.committed + 1)
    if gathered is None and state.idle:
        return f"{islands(sorted(state.awaited))} to join again after the restart of the syncer"
    if gathered is None:
        return state.saving or "the next launch"
    return _round(gathered, state.saving)


def _round(gathered: Round, saving: str) -> str:
    """For whom the oldest open round waits."""
    what = f"outer step {gathered.t} (fragment {gathered.fragment})"
    if gathered.stage is Stage.READY and saving:
        return f"{saving}, to commit {what}"
    if gathered.stage is not Stage.GATHERING:
        return f"the merge of {what}"
    if gathered.pending:
        return f"{islands(gathered.pending)} to answer {what}"
    return f"islands to join {what}"


def islands(ids: Iterable[int]) -> str:
    """Islands by name, as long as they are few."""
    some = list(islice(ids, NAMES_MAX + 1))
    if len(some) > NAMES_MAX:
        return f"more than {NAMES_MAX} islands"
    return f"island{'s' if len(some) > 1 else ''} {', '.join(str(i) for i in sorted(some))}" if some else "nobody"


def status_of(state: State) -> RunStatus:
    """The whole state as plain data for `status.json`."""
    return RunStatus(
        phase=state.phase.value,
        run=state.run,
        t=state.committed,
        versions=() if state.values is None else tuple(name.version for name in state.values.present),
        open=tuple(
            OpenRound(r.t, r.fragment, r.attempt, r.stage.value, r.answered, state.quorum(r.present))
            for r in state.rounds.values()
        ),
        members=_members(state),
        late=tuple(
            LateStatus(late.answer.island, late.fragment, late.t, late.answer.complete)
            for late in (*state.carried.values(), *state.late.values())
        ),
        checkpoint=CheckpointStatus(state.saved_step, state.saving, state.save_fault),
        joining=tuple(sorted(m.island for m in state.roster.generations.values() if not m.joined)),
        waiting_for=waiting_for(state),
    )


def _members(state: State) -> tuple[MemberStatus, ...]:
    gathered = state.rounds.get(state.committed + 1)
    pending = gathered.pending if gathered is not None and gathered.stage is Stage.GATHERING else {}
    return tuple(
        MemberStatus(
            island=member.island,
            host=member.host,
            step=member.clock.step,
            step_s=member.clock.seconds,
            waiting=member.island in pending,
            done=member.done,
            linked=member.linked,
        )
        for member in state.roster.ordered()
    )
