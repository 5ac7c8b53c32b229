"""One checker per property of a whole run. Each takes what the run left behind and raises on the first violation."""

from __future__ import annotations

from typing import Any

Tape = list[tuple[float, str, dict[str, Any]]]


def lines(tape: Tape, event: str) -> list[dict[str, Any]]:
    return [fields for _, kind, fields in tape if kind == event]


def commits_are_in_order(tape: Tape) -> None:
    """Outer steps are committed one after the other, none twice, none left out."""
    steps = [line["t"] for line in lines(tape, "commit")]
    assert steps == list(range(1, len(steps) + 1)), steps


def versions_are_outer_steps(tape: Tape, fragments: int) -> None:
    """Step t changes fragment (t − 1) mod P to version t, or is void and changes nothing."""
    present = [0] * fragments
    for line in lines(tape, "commit"):
        fragment = (line["t"] - 1) % fragments
        assert line["fragment"] == fragment, line
        assert line["version"] == (present[fragment] if line["void"] else line["t"]), line
        present[fragment] = line["version"]


def no_step_below_min_islands(tape: Tape, min_islands: int) -> None:
    """Every step has at least `min_islands` contributors."""
    for line in lines(tape, "commit"):
        contributors = {part["island"] for part in line["contributions"]}
        assert line["void"] or len(contributors) >= min_islands, line


def one_delta_per_anchor(tape: Tape) -> None:
    """No island's delta from one anchor is merged twice."""
    seen: set[tuple[int, int, int]] = set()
    for line in lines(tape, "commit"):
        for part in [] if line["void"] else line["contributions"]:
            key = (part["island"], line["fragment"], part["base_version"])
            assert part["steps"] == 0 or key not in seen, f"merged twice: {key} in {line}"
            if part["steps"]:
                seen.add(key)


def no_local_step_is_merged_twice(tape: Tape) -> None:
    """The local steps behind the merged deltas of one life of an island do not overlap, fragment by fragment."""
    upto: dict[tuple[str, int], int] = {}
    for line in lines(tape, "commit"):
        for part in [] if line["void"] else line["contributions"]:
            if part["steps"] == 0:
                continue
            key = (part["generation"], line["fragment"])
            assert part["capture_step"] - part["steps"] >= upto.get(key, 0), f"{key}: {part}"
            upto[key] = part["capture_step"]


def every_push_has_one_fate(tape: Tape) -> None:
    """No push is both merged and dropped, and none is merged twice."""
    merged = [part["push"] for line in lines(tape, "commit") if not line["void"] for part in line["contributions"]]
    dropped = [line["push"] for line in lines(tape, "dropped")]
    assert len(set(merged)) == len(merged) and len(set(dropped)) == len(dropped)
    assert not set(merged) & set(dropped)


def contributions_are_in_island_order(tape: Tape) -> None:
    """Floats are added in island order."""
    for line in lines(tape, "commit"):
        islands = [part["island"] for part in line["contributions"]]
        assert islands == sorted(islands), line  # One that is carried from an earlier round comes before its own.


def check(tape: Tape, fragments: int, min_islands: int) -> None:
    """All of them."""
    commits_are_in_order(tape)
    versions_are_outer_steps(tape, fragments)
    no_step_below_min_islands(tape, min_islands)
    one_delta_per_anchor(tape)
    no_local_step_is_merged_twice(tape)
    every_push_has_one_fate(tape)
    contributions_are_in_island_order(tape)
