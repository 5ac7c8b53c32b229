"""What the run is doing as a whole. Derived from what is remembered (`State.phase`), never stored: rules ask for it.

A phase follows from facts, so nothing sets it; `FOLLOWS` says which one may come after which over one event, and
`Coordinator.validate` holds every event to it.
"""

from __future__ import annotations

from enum import Enum

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

    @property
    def steps(self) -> bool:
        """Whether rounds are launched."""
        return self in (Phase.TRAINING, Phase.FINISHING)

    @property
    def carries(self) -> bool:
        """Whether a push that missed its round may hope for another one."""
        return self in _WITH_VALUES

    @property
    def before_values(self) -> bool:
        """Whether there is nothing yet that could be pulled or published."""
        return self in (Phase.JOINING, Phase.INIT)


_WITH_VALUES = (Phase.TRAINING, Phase.PAUSED, Phase.FINISHING)
FOLLOWS = {
    # The provider may leave between its upload and the adoption of its values: then they come while islands join. All
    # who are here may be done already: islands that come to a syncer without its state. A run may be restored with its
    # final cut.
    Phase.JOINING: frozenset({Phase.INIT, *_WITH_VALUES, Phase.FINAL, Phase.STOPPING, Phase.ENDED}),
    Phase.INIT: frozenset({Phase.JOINING, *_WITH_VALUES, Phase.STOPPING, Phase.ENDED}),
    Phase.TRAINING: frozenset({Phase.PAUSED, Phase.FINISHING, Phase.STOPPING, Phase.ENDED}),
    # The last rounds may be taken already when a member leaves.
    Phase.PAUSED: frozenset({Phase.TRAINING, Phase.FINISHING, Phase.FINAL, Phase.STOPPING, Phase.ENDED}),
    # A member that is not done takes the finish back.
    Phase.FINISHING: frozenset({Phase.TRAINING, Phase.PAUSED, Phase.FINAL, Phase.STOPPING, Phase.ENDED}),
    Phase.FINAL: frozenset({Phase.ENDED}),
    Phase.STOPPING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset(),
}
"""Which phase may come after which, over one event."""
