"""What an island holds of the global model and what it will install: anchors, wanted values, and how each is aligned.

Pure. Carries the three tables of the design: the ordinary install, the resume after a restart (by what a checkpoint
remembers) and the redial of a running island. The session asks; the shell downloads and writes.

The tables in one rule, for the first value of a fragment that is seen after a Welcome:

* the anchor is *same*: nothing is written; where the anchor's values are unknown (a record without saved anchors) they
  are downloaded, and only become the anchor;
* a delta from the anchor is held by the syncer: it may be in the value already, so local progress is not
  carried onto it;
* else, where the anchor's values are known, local progress is shifted onto the new value;
* else the value overwrites the local ones.

Invariants: a fragment is pending under one name only; counters survive exactly where local progress does.
"""

from __future__ import annotations

from collections import Counter

from swift_diloco.core.formats.messages import Contract, ValueName, Welcome
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.island.brain.anchors import Anchor
from swift_diloco.island.brain.terms import ordinary_align
from swift_diloco.island.events import Align, Bind, Effect, Install, Log, NameAnchor
from swift_diloco.island.remembered import AnchorRecord, Remembered


class Holdings:
    """The anchors of one island, and the values that wait to be installed over them."""

    def __init__(self, remembered: Remembered | None = None) -> None:
        self.plan: FragmentPlan | None = None
        self.run = ""
        self.anchors: list[Anchor] = []
        self.pending: dict[int, ValueName] = {}
        self._remembered = remembered
        self._unmet: set[int] = set()
        """Fragments of which no value was seen since the Welcome."""
        self._how: dict[int, Align] = {}
        """Pending first values whose alignment a table has decided."""
        self._resumed: set[int] = set()
        """Fragments whose anchor comes from a record and was not met yet."""
        self._values_known = True
        """Whether the values of the resumed anchors were saved."""
        self._written_final: set[int] = set()
        self._tally: Counter[str] = Counter()
        self._summarized = True

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def missing(self) -> int:
        """Fragments that never had a global value, or have one from a record only, which no syncer has confirmed."""
        nameless = {f for f, anchor in enumerate(self.anchors) if anchor.name is None}
        return len(nameless | self._resumed)

    @property
    def complete(self) -> bool:
        """Whether every fragment stands on a value of this syncer."""
        return self.plan is not None and not self.missing

    @property
    def resumed(self) -> bool:
        """Whether anchors from a record still wait for the syncer's values."""
        return bool(self._resumed)

    @property
    def grown(self) -> bool:
        """Whether this island stands on global values: those of a record, or of this life."""
        return self._remembered is not None or any(anchor.name is not None for anchor in self.anchors)

    def wanted(self) -> tuple[ValueName, ...]:
        """Values to install once every rank has staged them, in fragment order."""
        return tuple(self.pending[fragment] for fragment in sorted(self.pending))

    def valued(self) -> tuple[ValueName, ...]:
        """The anchors whose values are here, so that they need no download."""
        known = (f for f in range(len(self.anchors)) if self._values_known or f not in self._resumed)
        return tuple(name for f in known if (name := self.anchors[f].name) is not None)

    def spent(self) -> frozenset[int]:
        """Fragments from whose anchor the syncer holds, or may hold, a delta."""
        return frozenset(fragment for fragment, anchor in enumerate(self.anchors) if anchor.spent)

    def records(self) -> tuple[AnchorRecord | None, ...]:
        """For the checkpoint, in fragment order."""
        return tuple(anchor.record() for anchor in self.anchors)

    def validate(self) -> None:
        for fragment, anchor in enumerate(self.anchors):
            anchor.validate()
            assert self.pending.get(fragment) is None or self.pending[fragment].fragment == fragment
        assert self._how.keys() <= self.pending.keys(), (self._how, self.pending)
        assert self.plan is None or len(self.anchors) == len(self.plan)

    # -- joining -------------------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """The generation is over: what was wanted is void, what is held stays. The next Welcome is told of anew."""
        self.pending.clear()
        self._how.clear()
        self._summarized = True

    def welcomed(self, message: Welcome) -> list[Effect]:
        """Take the syncer's fragments, its view of this island's anchors, and its present values. What is held by
        which name is told with the introduction of the ranks, so no anchor is named here."""
        effects: list[Effect] = []
        if message.plan != self.plan:
            effects += self._begin(message)
        self.run = message.run or self.run
        self._settle_pushes(message)
        self.pending.clear()
        self._how.clear()
        self._unmet = set(range(len(self.anchors)))
        self._tally.clear()
        self._summarized = False
        for name in message.values:
            self._take_first(name)
        return effects

    def _begin(self, message: Welcome) -> list[Effect]:
        self.plan = message.plan
        self.anchors = [Anchor() for _ in message.plan.fragments]
        remembered, self._remembered = self._remembered, None
        bind = Bind(message.plan)
        if remembered is None:
            return [bind]
        if remembered.run and message.run and remembered.run != message.run:
            return [bind, _cold(f"the record is of run {remembered.run}, the syncer's run is {message.run}")]
        if remembered.plan != message.plan:
            return [bind, _cold("the record is of other fragments than the syncer's")]
        encoding = message.contract.publish_encoding
        if remembered.publish_encoding not in ("", encoding):
            was = remembered.publish_encoding
            return [bind, _cold(f"the record's anchors are of values published as {was}, the syncer's are {encoding}")]
        self.run = remembered.run
        self.anchors = [Anchor.remembered(f, record) for f, record in enumerate(remembered.anchors)]
        self._resumed = {f for f, anchor in enumerate(self.anchors) if anchor.name is not None}
        self._values_known = remembered.with_values
        return [bind]

    def _settle_pushes(self, message: Welcome) -> None:
        """A push of unknown fate is settled by what the syncer holds; anchors it has forgotten count as held.

        A resumed anchor that is not the present value counts as held, too, when work is held that was done after the
        checkpoint: local progress may have been carried onto a newer anchor and been pushed from there.
        """
        outrun = set(message.outrun)
        for fragment, anchor in enumerate(self.anchors):
            if anchor.name is None:
                continue
            forgotten = fragment < len(message.held_floor) and anchor.name.version < message.held_floor[fragment]
            mine = [held for held in message.held if held.fragment == fragment]
            later = fragment in outrun or any(held.version > anchor.name.version for held in mine)
            present = any(anchor.is_same(value) for value in message.values if value.fragment == fragment)
            moved_on = fragment in self._resumed and later and not present
            anchor.settle(forgotten or moved_on or any(map(anchor.is_same, mine)))

    def trained(self, tokens: int) -> None:
        """A successful local step: it counts for every anchor, and leaves what was written of a final cut."""
        for anchor in self.anchors:
            anchor.count(tokens)
        self._written_final.clear()

    # -- values --------------------------------------------------------------------------------------------------------

    def published(self, name: ValueName, run: str) -> list[Effect]:
        """A value was announced: meet it if it is the first of its fragment, else want it."""
        fragment = name.fragment
        self.run = run or self.run
        if fragment in self._unmet or self._how.get(fragment) is Align.KEEP:
            self.pending.pop(fragment, None)
            self._how.pop(fragment, None)
            return [NameAnchor(name)] if self._take_first(name) else []
        if not self.anchors[fragment].is_same(name):
            self.pending[fragment] = name
            return []
        self.pending.pop(fragment, None)
        if self._how.pop(fragment, None) is not None:
            self._met(fragment, "kept")
        return []

    def provided(self, name: ValueName, run: str) -> list[Effect]:
        """The initial value this island uploaded has a name now: its anchor bears it, and nothing is written."""
        anchor = self.anchors[name.fragment]
        self.run = run or self.run
        if anchor.name is None or (name.fragment in self._resumed and not self._values_known):
            anchor.installed(name)  # the local values themselves were uploaded: no progress is left on top of them
        else:
            anchor.renamed(name)
        self._met(name.fragment, "kept")
        return [NameAnchor(name)]

    def final_cut(self, values: tuple[ValueName, ...], *, held_exactly: bool = True) -> None:
        """The values to end with: those not held are wanted, and overwrite. All of them, where anchors are what a
        coarser encoding left of the values."""
        self._written_final.clear()
        self._unmet.clear()
        self.pending = {n.fragment: n for n in values if not (held_exactly and self._holds_values_of(n))}
        self._how = dict.fromkeys(self.pending, Align.OVERWRITE)
        self._resumed &= self.pending.keys()

    def left_to_write(self, values: tuple[ValueName, ...]) -> list[Effect]:
        """The parts of the final cut that are held as anchors and were not written by an install of it."""
        return [Install(n, Align.ANCHOR) for n in sorted(values) if n.fragment not in self._written_final]

    def _holds_values_of(self, name: ValueName) -> bool:
        unknown = name.fragment in self._resumed and not self._values_known
        return self.anchors[name.fragment].is_same(name) and not unknown

    def _take_first(self, name: ValueName) -> bool:
        """Take the first value of a fragment. True: it is the anchor's, which bears its name now; False: it is wanted,
        and how it is installed is decided."""
        fragment, anchor = name.fragment, self.anchors[name.fragment]
        self._unmet.discard(fragment)
        if self._holds_values_of(name):
            anchor.renamed(name)
            self._met(fragment, "kept")
            return True
        self.pending[fragment] = name
        resumed = fragment in self._resumed
        if anchor.is_same(name):
            self._how[fragment] = Align.KEEP
        elif anchor.name is None or (resumed and (anchor.spent or not self._values_known)):
            self._how[fragment] = Align.OVERWRITE
        elif not anchor.spent:
            self._how[fragment] = Align.SHIFT
        else:
            self._tally["overwritten"] += 1
        return False

    def _met(self, fragment: int, how: str) -> None:
        self._unmet.discard(fragment)
        self._resumed.discard(fragment)
        self._tally[how] += 1

    def install(self, name: ValueName, contract: Contract) -> Install:
        """The install of a staged value, with the anchor's counters brought up to it."""
        fragment, anchor = name.fragment, self.anchors[name.fragment]
        del self.pending[fragment]
        how = self._how.pop(fragment, None)
        if how is not None:
            return self._install_first(name, how)
        align = ordinary_align(contract)
        if align is Align.CARRY:
            if anchor.pushed_steps:
                anchor.carried(name)
                return Install(name, Align.CARRY)
            if not anchor.spent or anchor.push is not None:  # nothing was pushed, or nothing was in the push
                anchor.rebased(name)
                return Install(name, Align.SHIFT)
        anchor.installed(name)
        return Install(name, Align.BLEND, contract.alpha) if align is Align.BLEND else Install(name, Align.OVERWRITE)

    def _install_first(self, name: ValueName, how: Align) -> Install:
        anchor = self.anchors[name.fragment]
        if how is Align.KEEP:
            anchor.renamed(name)
        elif how is Align.SHIFT:
            anchor.rebased(name)
        else:
            anchor.installed(name)
            self._written_final.add(name.fragment)
        self._met(name.fragment, {Align.KEEP: "kept", Align.SHIFT: "shifted"}.get(how, "overwritten"))
        return Install(name, how)

    def summarize(self, *, waiting_ended: bool = False) -> list[Effect]:
        """One line, once: what became of the fragments; when all are met, or when the wait for them ended."""
        open_ones = self._unmet | self._how.keys()
        if self._summarized or (open_ones and not waiting_ended):
            return []
        self._summarized = True
        kept, shifted, overwritten = (self._tally[what] for what in ("kept", "shifted", "overwritten"))
        counts = f"{kept} kept, {shifted} shifted, {overwritten} overwritten, {len(open_ones)} missing"
        return [Log("info", f"global values of {len(self.anchors)} fragments: {counts}")]


def _cold(reason: str) -> Log:
    return Log("warning", f"cold start, local values will be overwritten: {reason}")
