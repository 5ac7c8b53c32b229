"""Which anchors the syncer holds a delta from: gathered, carried or merged.

It is the memory by which one delta per island and anchor is taken, whatever the island forgets. Knows names only.

Invariants: an anchor is gathered (a carried push is), merged or not held; a merged one is never released.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from swift_diloco.core.formats.messages import ValueName

MERGED_KEPT = 8
"""Merged anchors remembered per island and fragment (names). Older ones are covered by their version number."""


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
