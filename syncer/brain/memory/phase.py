"""What the run is doing as a whole, derived from what is remembered."""

from __future__ import annotations

from enum import Enum

from syncer.brain.memory.state import State

PROVIDER = 0
"""The island whose values every island starts from."""


class Phase(Enum):
    """What the run is doing."""

    JOINING = "joining"
    """Not all expected islands are members."""
    INIT = "init"
    """The initial values are on their way."""
    TRAINING = "training"
    """Rounds are open."""
    PAUSED = "paused"
    """Fewer members than `min_islands`."""
    FINISHING = "finishing"
    """Every island is done; the last rounds are open."""
    FINAL = "final"
    """The final cut is out."""
    STOPPING = "stopping"
    """Told to stop; open rounds get their time."""
    ENDED = "ended"
    """Nothing is handled any more."""


def phase_of(state: State) -> Phase:
    """The phase of the run."""
    if state.exited:
        return Phase.ENDED
    if state.final:
        return Phase.FINAL
    if state.stopping:
        return Phase.STOPPING
    if state.values is None:
        missing = PROVIDER not in state.roster.members or len(state.roster.members) < state.expected
        return Phase.JOINING if missing else Phase.INIT
    if state.paused:
        return Phase.PAUSED
    return Phase.TRAINING if state.goal is None else Phase.FINISHING
