"""What a simulated world leaves behind for the checkers: the tape, and the truth that no message tells.

The truth is where each piece of learning went: a *unit* is one local step of one life of an island, and values carry
the units that are in them. Knows no brain and no rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.formats.tape_lines import Commit, Init, Resumed, SomeLine, TapeLine

Unit = tuple[int, str, int]
"""One local step: island, life of its process, step number."""


@dataclass(frozen=True)
class Learned:
    """What an island learned on one fragment since an anchor."""

    value: float
    units: frozenset[Unit]


@dataclass(frozen=True)
class Merged:
    """One contribution that became part of a published value."""

    t: int
    fragment: int
    push: str
    units: frozenset[Unit]


@dataclass(frozen=True)
class Captured:
    """One push as its island told of it, and what was really in it."""

    push: str
    steps: int
    units: frozenset[Unit]


@dataclass
class History:
    """Everything of note, in the order in which it happened."""

    tape: list[TapeLine] = field(default_factory=list)
    published: list[tuple[ValueName, float]] = field(default_factory=list)
    installed: list[tuple[int, ValueName, float]] = field(default_factory=list)
    merged: list[Merged] = field(default_factory=list)
    """What is in the syncer's values; a restart takes back what came after its checkpoint."""
    captured: list[Captured] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    """Uploads, when the syncer made room for them."""
    ended: list[str] = field(default_factory=list)
    """Uploads, when that room was free again."""
    durable: int = 0
    """The newest outer step that a finished checkpoint holds."""
    resumed: list[tuple[int, int]] = field(default_factory=list)
    """Per restart of the syncer: the outer step it went on from, and the durable one at that time."""

    def rewound(self, step: int) -> None:
        """The syncer goes on after outer step `step`, whatever it had done since."""
        self.merged = [each for each in self.merged if each.t <= step]

    def stopped(self, *, well: bool) -> None:
        """The syncer ended as it was told to: all it had committed is promised, if it says that it ended well."""
        steps = [0]
        for line in self.tape:
            match line:
                case Init():
                    steps = [0]
                case Resumed(t=went_on):
                    steps = [step for step in steps if step <= went_on]
                case Commit():
                    steps.append(line.t)
        self.durable = max(self.durable, *steps) if well else self.durable

    def lines(self, kind: type[SomeLine]) -> list[SomeLine]:
        """Tape lines of one kind."""
        return [line for line in self.tape if isinstance(line, kind)]
