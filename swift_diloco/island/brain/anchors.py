"""Per-fragment bookkeeping of an island: which value it was given, what it did since, and whether that was
already pushed.

Pure and without tensors; the anchor *values* belong to the island shell. One `Anchor` per fragment, in fragment order.

Invariants: counters are zero when there is no anchor name; a push in flight is of a spent anchor.
"""

from __future__ import annotations

from dataclasses import dataclass

from swift_diloco.core.formats.messages import ValueName
from swift_diloco.island.remembered import AnchorRecord


@dataclass
class Anchor:
    """One fragment's anchor: its name, local steps and tokens since it was installed, and the push measured from it."""

    name: ValueName | None = None
    steps: int = 0
    """Successful optimizer updates since the install."""
    tokens: int = 0
    """Supervised tokens of those updates."""
    push: str | None = None
    """The push measured from this anchor; only its `Dropped` or refusal releases the anchor."""
    spent: bool = False
    """A delta from this anchor is on its way or held: no second one may be measured from it."""
    settled: bool = True
    """The syncer answered the push (or there is none)."""
    pushed_steps: int = 0
    """`steps` at the capture of the push; 0 while the anchor is not spent."""
    pushed_tokens: int = 0
    """`tokens` at the capture of the push."""

    def installed(self, name: ValueName) -> None:
        """A new value was written into the model: counting starts again."""
        self.name, self.steps, self.tokens = name, 0, 0
        self._free()

    def carried(self, name: ValueName) -> None:
        """A new value was written with the progress since the capture on top: only that is counted from now on."""
        self.name = name
        self.steps -= self.pushed_steps
        self.tokens -= self.pushed_tokens
        self._free()

    def renamed(self, name: ValueName) -> None:
        """The same values got a (new) name; nothing was written, so the counters stay."""
        self.name = name

    def rebased(self, name: ValueName) -> None:
        """Local progress was carried onto a new value: the counters stay, the delta may be measured (again)
        from there."""
        self.name = name
        self._free()

    def count(self, tokens: int) -> None:
        """One more successful local step."""
        if self.name is not None:
            self.steps += 1
            self.tokens += tokens

    def offered(self, push: str) -> None:
        """A delta was captured and offered."""
        assert not self.spent and self.name is not None, f"second push {push} from {self.name} after {self.push}"
        self.push, self.spent, self.settled = push, True, False
        self.pushed_steps, self.pushed_tokens = self.steps, self.tokens

    def answered(self, push: str, *, spent: bool) -> None:
        """The syncer's answer to `push`; an answer to another push changes nothing."""
        if push == self.push:
            self.settled = True
            if not spent:
                self._free()

    def settle(self, held: bool) -> None:
        """A Welcome says whether the syncer holds a delta from this anchor; that settles a push of unknown fate."""
        self.spent, self.settled = held, True
        if not held:
            self._free()

    def _free(self) -> None:
        self.push, self.spent, self.settled = None, False, True
        self.pushed_steps, self.pushed_tokens = 0, 0

    def record(self) -> AnchorRecord | None:
        """For the checkpoint; None where there is no anchor."""
        if self.name is None:
            return None
        return AnchorRecord(self.name.version, self.name.digest, self.steps, self.tokens, self.spent, self.push or "")

    @classmethod
    def remembered(cls, fragment: int, record: AnchorRecord | None) -> Anchor:
        """The anchor of a resumed island; whether it is spent is told by Welcome, not by the record."""
        if record is None:
            return cls()
        return cls(ValueName(fragment, record.version, record.digest), record.steps, record.tokens)

    def is_same(self, name: ValueName) -> bool:
        """Whether a published value is this anchor's: version and digest, where both are known.

        The digest alone does not do: an outer step may leave every bit as it was, and is an install all the same.
        """
        if self.name is None or self.name.version != name.version:
            return False
        return self.name.digest == name.digest or not (self.name.digest and name.digest)

    def validate(self) -> None:
        assert self.name is not None or (self.steps == 0 and not self.spent), self
        assert self.settled or self.spent, self
