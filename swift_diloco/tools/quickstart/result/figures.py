"""What the syncer wrote of a run, as numbers: its event tape read into commits, fetches and totals.

It knows nothing of processes. Invariant: commits are in the order of t, which is the order of the tape.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from swift_diloco.core.files import tape_file
from swift_diloco.core.formats.tape_lines import Commit, Fetched, Final, Init, Line, Opened, Refused, Resumed, TapeLine


@dataclass
class TapeFigures:
    """A run as the syncer saw it."""

    fragments: int = 0
    commits: list[Commit] = field(default_factory=list)
    fetches: list[Fetched] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    final_s: float | None = None
    """When the final cut was published (seconds since the first event); None: it never was."""
    begin: float = 0.0
    """Seconds since 1970 of its first event."""
    resumes: int = 0
    """How often a syncer that was started again went on with the run."""

    def since_begin(self, line: Line) -> float:
        """When a line was written, in seconds since the first event."""
        return line.time - self.begin

    def outer_step_at(self, time_s: float) -> int:
        """The last outer step that was taken by then."""
        return max((commit.t for commit in self.commits if self.since_begin(commit) <= time_s), default=0)

    @property
    def outer_steps(self) -> int:
        """Outer steps that changed the global values."""
        return sum(not commit.void for commit in self.commits)

    @property
    def pushed_bytes(self) -> int:
        """Payload of all merged deltas."""
        return sum(part.bytes for commit in self.commits for part in commit.contributions)

    @property
    def fetched_bytes(self) -> int:
        """Payload of all downloads of published values: first cut, commits and final cut."""
        return sum(fetch.bytes for fetch in self.fetches)

    def tokens_merged(self, island: int) -> int:
        """Tokens behind an island's deltas of the fragment that got most of them (each fragment counts for itself)."""
        per_fragment: dict[int, int] = {}
        for commit in self.commits:
            for part in commit.contributions:
                if part.island == island:
                    per_fragment[commit.fragment] = per_fragment.get(commit.fragment, 0) + part.tokens
        return max(per_fragment.values(), default=0)


def parse_tape(lines: Iterable[TapeLine]) -> TapeFigures:
    """The events of a tape, in order, as one value."""
    tape = TapeFigures()
    for line in lines:
        if isinstance(line, Opened):
            continue  # Long before anything happens: islands have their models to load.
        tape.begin = tape.begin or line.time
        match line:
            case Init():
                tape.fragments = len(line.fragments)
            case Commit():
                parts = tuple(sorted(line.contributions, key=lambda part: part.island))
                tape.commits.append(replace(line, contributions=parts))
            case Fetched():
                tape.fetches.append(line)
            case Refused():
                tape.refused.append(line.reason)
            case Resumed():
                # Commits that were not in the checkpoint were taken back.
                tape.resumes += 1
                tape.commits = [commit for commit in tape.commits if commit.t <= line.t]
            case Final():
                tape.final_s = tape.since_begin(line)
    return tape


def read_tape(path: Path) -> TapeFigures:
    """Read a tape file; an absent file is an empty tape."""
    if not path.exists():
        return TapeFigures()
    return parse_tape(line for _, line in tape_file.read_tape(path) if line is not None)
