"""What the syncer wrote of a run, as numbers: its event tape (JSON lines) read into commits, fetches and totals.

It knows the tape's format and nothing of processes. Events and fields it does not know are passed over, so that a
report can be made from a newer tape. Invariant: commits are in the order of t, which is the order of the tape.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from swift_diloco.core.files.json_lines import JsonLines, Row


@dataclass(frozen=True)
class Contribution:
    """One island's delta in a commit."""

    island: int
    lag: int
    """Versions of the fragment that the delta's anchor was behind."""
    steps: int
    tokens: int
    payload_bytes: int


@dataclass(frozen=True)
class Commit:
    """One outer step."""

    t: int
    fragment: int
    version: int
    void: bool
    time_s: float
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True)
class Fetched:
    """One rank has downloaded its pieces of one published value."""

    time_s: float
    island: int
    fragment: int
    version: int
    payload_bytes: int


@dataclass
class Tape:
    """A run as the syncer saw it. Times are seconds since its first event."""

    fragments: int = 0
    commits: list[Commit] = field(default_factory=list)
    fetches: list[Fetched] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    final_s: float | None = None
    """When the final cut was published; None: it never was."""
    begin: float = 0.0
    """Seconds since 1970 of its first event."""
    resumes: int = 0
    """How often a syncer that was started again went on with the run."""

    def outer_step_at(self, time_s: float) -> int:
        """The last outer step that was taken by then."""
        return max((commit.t for commit in self.commits if commit.time_s <= time_s), default=0)

    @property
    def outer_steps(self) -> int:
        """Outer steps that changed the global values."""
        return sum(not commit.void for commit in self.commits)

    @property
    def pushed_bytes(self) -> int:
        """Payload of all merged deltas."""
        return sum(part.payload_bytes for commit in self.commits for part in commit.contributions)

    @property
    def fetched_bytes(self) -> int:
        """Payload of all downloads of published values: first cut, commits and final cut."""
        return sum(fetch.payload_bytes for fetch in self.fetches)

    def tokens_merged(self, island: int) -> int:
        """Tokens behind an island's deltas of the fragment that got most of them (each fragment counts for itself)."""
        per_fragment: dict[int, int] = {}
        for commit in self.commits:
            for part in commit.contributions:
                if part.island == island:
                    per_fragment[commit.fragment] = per_fragment.get(commit.fragment, 0) + part.tokens
        return max(per_fragment.values(), default=0)


def _contribution(row: Row) -> Contribution:
    return Contribution(
        island=int(row["island"]),
        lag=int(row.get("lag", 0)),
        steps=int(row.get("steps", 0)),
        tokens=int(row.get("tokens", 0)),
        payload_bytes=int(row.get("bytes", 0)),
    )


def parse_tape(rows: Iterable[Row]) -> Tape:
    """The events of a tape, in order, as one value."""
    tape = Tape()
    begin: float | None = None
    for row in rows:
        now = float(row.get("time", 0.0))
        begin = tape.begin = now if begin is None else begin
        time_s = now - begin
        event = row.get("event")
        if event == "init":
            tape.fragments = len(row.get("fragments", ()))
        elif event == "commit":
            parts = tuple(sorted(map(_contribution, row.get("contributions", ())), key=lambda part: part.island))
            version = int(row.get("version", 0))
            void = bool(row.get("void"))
            tape.commits.append(Commit(int(row["t"]), int(row["fragment"]), version, void, time_s, parts))
        elif event == "fetched":
            tape.fetches.append(
                Fetched(time_s, int(row["island"]), int(row["fragment"]), int(row["version"]), int(row["bytes"]))
            )
        elif event == "refused":
            tape.refused.append(str(row.get("reason", "")))
        elif event == "resumed":
            # Commits that were not in the checkpoint were taken back.
            tape.resumes += 1
            tape.commits = [commit for commit in tape.commits if commit.t <= int(row.get("t", 0))]
        elif event == "final":
            tape.final_s = time_s
    return tape


def read_tape(path: Path) -> Tape:
    """Read a tape file; an absent file is an empty tape."""
    return parse_tape(JsonLines(path).new())
