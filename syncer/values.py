"""Names of the published values: the present one of each fragment, what came before, and which anchors are spent.

Knows names only, never bytes. `Values` is the history that the syncer's state descends from; `HeldAnchors` is the
memory by which one delta per island and anchor is taken, whatever the island forgets.

Invariants: versions of a fragment only grow; an anchor is gathered, merged or not held; a merged one is never released.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from enum import Enum

from swift_diloco.core.formats.messages import ValueName

HISTORY_MAX = 4096
"""Past values remembered per fragment (names): a fortnight of five-minute rounds; older anchors count as forked."""

MERGED_KEPT = 8
"""Merged anchors remembered per island and fragment (names). Older ones are covered by their version number."""


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

    def standing(self, anchor: ValueName) -> Standing:
        """Where an anchor of a known fragment stands."""
        present = self.present[anchor.fragment]
        if anchor == present:
            return Standing.SAME
        if anchor in self._order[anchor.fragment]:
            return Standing.BEHIND
        return Standing.NEWER if anchor.version > present.version else Standing.FORKED

    def lag(self, anchor: ValueName) -> int:
        """Versions of its fragment published since an anchor of the history."""
        order = self._order[anchor.fragment]
        return order[self.present[anchor.fragment]] - order[anchor]


class HeldAnchors:
    """Which anchors of which island the syncer holds a delta from."""

    def __init__(self) -> None:
        self._gathered: dict[int, dict[ValueName, int]] = {}
        """Per island and anchor: the local step at which its delta was captured."""
        self._merged: dict[int, dict[int, list[ValueName]]] = {}
        self._reached: dict[tuple[int, int], int] = {}
        """Per island and fragment: the highest local step whose work is merged."""

    @classmethod
    def of_merged(
        cls, merged: Sequence[tuple[int, Sequence[ValueName]]], reached: Sequence[tuple[int, int, int]] = ()
    ) -> HeldAnchors:
        """From what `merged` and `reached` gave; nothing is gathered."""
        held = cls()
        for island, names in merged:
            for name in names:
                held._merged.setdefault(island, {}).setdefault(name.fragment, []).append(name)
        held._reached = {(island, fragment): step for island, fragment, step in reached}
        return held

    def reached(self) -> tuple[tuple[int, int, int], ...]:
        """(island, fragment, highest local step whose work is merged), in order."""
        return tuple((island, fragment, step) for (island, fragment), step in sorted(self._reached.items()))

    def merged(self) -> tuple[tuple[int, tuple[ValueName, ...]], ...]:
        """Per island, in order: every merged anchor that is remembered, by fragment and in order of merging."""
        return tuple(
            (island, tuple(name for fragment in sorted(fragments) for name in fragments[fragment]))
            for island, fragments in sorted(self._merged.items())
        )

    def copy(self) -> HeldAnchors:
        """The same, to go on from on its own."""
        held = HeldAnchors()
        held._gathered = {island: dict(names) for island, names in self._gathered.items()}
        held._reached = dict(self._reached)
        held._merged = {i: {f: list(names) for f, names in each.items()} for i, each in self._merged.items()}
        return held

    def holds(self, island: int, anchor: ValueName) -> bool:
        """Whether a delta from this anchor was taken. Anchors older than all that are remembered count as held."""
        if anchor in self._gathered.get(island, ()):
            return True
        merged = self._merged.get(island, {}).get(anchor.fragment, [])
        return anchor in merged or (len(merged) == MERGED_KEPT and anchor.version < merged[0].version)

    def gather(self, island: int, anchor: ValueName, step: int = 0) -> None:
        """A push from this anchor, captured at local step `step`, was admitted."""
        self._gathered.setdefault(island, {})[anchor] = step

    def release(self, island: int, anchor: ValueName) -> None:
        """The push from this anchor was dropped before it was merged."""
        del self._gathered[island][anchor]

    def merge(self, island: int, anchor: ValueName) -> None:
        """The push from this anchor is in the global value."""
        key, step = (island, anchor.fragment), self._gathered[island][anchor]
        self._reached[key] = max(self._reached.get(key, 0), step)
        self.release(island, anchor)
        merged = self._merged.setdefault(island, {}).setdefault(anchor.fragment, [])
        insort(merged, anchor)
        del merged[:-MERGED_KEPT]

    def names(self, island: int) -> tuple[ValueName, ...]:
        """Every held anchor of an island that is remembered, in order."""
        merged = [name for names in self._merged.get(island, {}).values() for name in names]
        return tuple(sorted([*merged, *self._gathered.get(island, ())]))

    def floors(self, island: int, fragments: int) -> tuple[int, ...]:
        """Per fragment, the version below which every anchor counts as held; empty when all is remembered."""
        merged = self._merged.get(island, {})
        full = (merged.get(fragment, []) for fragment in range(fragments))
        floors = tuple(names[0].version if len(names) == MERGED_KEPT else 0 for names in full)
        return floors if any(floors) else ()

    def outrun(self, island: int, fragments: int, step: int) -> tuple[int, ...]:
        """Fragments of which work is held that the island did after its local step `step`."""
        reached = [self._reached.get((island, fragment), 0) for fragment in range(fragments)]
        for anchor, captured in self._gathered.get(island, {}).items():
            reached[anchor.fragment] = max(reached[anchor.fragment], captured)
        return tuple(fragment for fragment, upto in enumerate(reached) if upto > step)

    def gathered(self, island: int) -> frozenset[ValueName]:
        """Anchors of an island whose deltas are not merged yet."""
        return frozenset(self._gathered.get(island, ()))
