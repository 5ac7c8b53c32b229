"""What an audit finds: the fates of pushes, their sums, and the rules that are broken."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from swift_diloco.core.formats.tape_lines import Commit, Pushed


class Fate(Enum):
    """What became of a push."""

    MERGED = "merged"
    """It is in a value."""
    CARRIED = "carried"
    """It missed its round and waits for the next."""
    DROPPED = "dropped"
    """It was dropped with a reason."""
    ROLLED_BACK = "rolled_back"
    """It was in the memory of a syncer that died: in a commit that was lost, or not merged yet."""
    OPEN = "open"
    """The tape ends before its fate."""


@dataclass
class AuditedPush:
    """One admitted push."""

    line: int
    """Number of the line that told of it."""
    told: Pushed
    life: int
    """Of its island."""
    fate: Fate = Fate.OPEN
    fate_line: int = 0
    reason: str = ""
    late: bool = False
    """It was merged into a later round than the one it was pushed for."""

    @property
    def base(self) -> tuple[int, str]:
        """Version and digest of its anchor."""
        return self.told.base_version, self.told.base_digest

    @property
    def first(self) -> int:
        """The first local step that is in it."""
        return self.told.capture_step - self.told.steps + 1

    @property
    def last(self) -> int:
        """The last one."""
        return self.told.capture_step


@dataclass
class Sum:
    """Pushes, their steps and tokens."""

    pushes: int = 0
    steps: int = 0
    tokens: int = 0

    def add(self, push: AuditedPush) -> None:
        self.pushes += 1
        self.steps += push.told.steps
        self.tokens += push.told.tokens

    def plain(self) -> dict[str, int]:
        return {"pushes": self.pushes, "steps": self.steps, "tokens": self.tokens}


@dataclass
class RoundTimes:
    """How long the rounds took whose outer step was taken, in the words of the tape."""

    quorum_s: list[float] = field(default_factory=list)
    round_s: list[float] = field(default_factory=list)
    merge_s: list[float] = field(default_factory=list)

    def add(self, line: Commit) -> None:
        self.quorum_s.append(line.quorum_s)
        self.round_s.append(line.round_s)
        self.merge_s.append(line.merge_s)

    def plain(self) -> dict[str, float]:
        """Medians, and the longest round; nothing where there was none."""
        if not self.round_s:
            return {}
        medians = {"quorum_s": median(self.quorum_s), "round_s": median(self.round_s), "merge_s": median(self.merge_s)}
        return {**medians, "round_s_max": max(self.round_s)}


@dataclass(frozen=True)
class Breach:
    """A broken rule and the lines of the tape that show it."""

    text: str
    lines: tuple[int, ...]


@dataclass
class AuditReport:
    """What an audit found."""

    lines: int = 0
    runs: int = 0
    commits: int = 0
    void: int = 0
    lost_commits: int = 0
    times: RoundTimes = field(default_factory=RoundTimes)
    refused: int = 0
    pushed: Sum = field(default_factory=Sum)
    fates: dict[Fate, Sum] = field(default_factory=lambda: {fate: Sum() for fate in Fate})
    late: Sum = field(default_factory=Sum)
    """Of the merged pushes, those that missed their round and were merged into a later one."""
    reasons: dict[str, Sum] = field(default_factory=dict)
    discarded: int = 0
    """Steps, summed over fragments, that no push has: an install discarded them, or they were skipped updates."""
    replayed: int = 0
    """Local steps done again by restarted islands."""
    torn: int = 0
    """Lines that a killed process left unfinished."""
    violations: list[Breach] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations

    def plain(self) -> dict[str, object]:
        """As JSON."""
        return {
            "ok": self.ok,
            "lines": self.lines,
            "runs": self.runs,
            "commits": self.commits,
            "void_commits": self.void,
            "lost_commits": self.lost_commits,
            "round_times": self.times.plain(),
            "refused_offers": self.refused,
            "pushed": self.pushed.plain(),
            **{fate.value: total.plain() for fate, total in self.fates.items()},
            "merged_late": self.late.plain(),
            "dropped_because": {reason: total.plain() for reason, total in self.reasons.items()},
            "discarded_steps": self.discarded,
            "replayed_steps": self.replayed,
            "torn_lines": self.torn,
            "violations": [{"text": each.text, "lines": list(each.lines)} for each in self.violations],
        }
