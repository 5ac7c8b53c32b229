"""Names of the published values: the present one of each fragment, and what came before.

Knows names only, never bytes. It is the history that the syncer's state descends from: where an anchor stands in it
says whether a delta from there may be merged.

Invariant: versions of a fragment only grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from swift_diloco.core.formats.messages import ValueName

HISTORY_MAX = 4096
"""Past values remembered per fragment (names): a fortnight of five-minute rounds; older anchors count as forked."""


class Standing(Enum):
    """Where an anchor stands, seen from the syncer's history."""

    SAME = "same"
    """It is the present value."""
    BEHIND = "behind"
    """It was the present value once."""
    NEWER = "newer"
    """Its number is above the present one."""
    FORKED = "forked"
    """It was never published in this history."""


class Place(NamedTuple):
    """Where an anchor stands, and how far behind."""

    standing: Standing
    lag: int
    """Versions of its fragment published since; 0 for an anchor that is not of this history."""

    @property
    def foreign(self) -> bool:
        """Whether the anchor is none of this history."""
        return self.standing in (Standing.FORKED, Standing.NEWER)


class Values:
    """The values of every fragment in order of publication."""

    def __init__(self, initial: Sequence[ValueName]) -> None:
        self.present: list[ValueName] = list(initial)
        self._order: list[dict[ValueName, int]] = [{name: 0} for name in initial]

    @classmethod
    def of_history(cls, history: Sequence[Sequence[ValueName]]) -> Values:
        """From what `history` gave."""
        values = cls([names[-1] for names in history])
        values._order = [{name: number for number, name in enumerate(names)} for names in history]
        return values

    def history(self) -> tuple[tuple[ValueName, ...], ...]:
        """Per fragment every value remembered, oldest first, the present one last."""
        return tuple(tuple(order) for order in self._order)

    def copy(self) -> Values:
        """The same, to go on from on its own."""
        values = Values(self.present)
        values._order = [dict(order) for order in self._order]
        return values

    def publish(self, name: ValueName) -> None:
        """A fragment has a new present value."""
        old = self.present[name.fragment]
        assert name.version > old.version, f"{name} published after {old}"
        order = self._order[name.fragment]
        order[name] = order[old] + 1
        self.present[name.fragment] = name
        if len(order) > HISTORY_MAX:
            del order[next(iter(order))]

    def place(self, anchor: ValueName) -> Place:
        """Where an anchor of a known fragment stands."""
        present, order = self.present[anchor.fragment], self._order[anchor.fragment]
        if anchor == present:
            return Place(Standing.SAME, 0)
        if anchor in order:
            return Place(Standing.BEHIND, order[present] - order[anchor])
        return Place(Standing.NEWER if anchor.version > present.version else Standing.FORKED, 0)
