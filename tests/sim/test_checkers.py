"""Each checker catches the bug it is for, on a tape that is otherwise good."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from tests.sim.checkers import Tape, check


def part(island: int, push: str, base: int, upto: int) -> dict[str, Any]:
    return {
        "island": island,
        "generation": f"g{island}",
        "push": push,
        "base_version": base,
        "steps": 2,
        "capture_step": upto,
    }


def commit(t: int, *parts: dict[str, Any], fragments: int = 2) -> tuple[float, str, dict[str, Any]]:
    line = {"t": t, "fragment": (t - 1) % fragments, "version": t, "void": False, "contributions": list(parts)}
    return (float(t), "commit", line)


GOOD: Tape = [
    commit(1, part(0, "a", 0, 2), part(1, "b", 0, 2)),
    commit(2, part(0, "c", 0, 2), part(1, "d", 0, 2)),
    (2.5, "dropped", {"island": 1, "push": "x"}),
    commit(3, part(0, "e", 1, 4), part(1, "f", 1, 4)),
]


def test_a_good_tape_passes() -> None:
    check(GOOD, fragments=2, min_islands=2)


def planted(what: str) -> Tape:
    """The good tape with one bug in it."""
    tape = deepcopy(GOOD)
    first, second, third = (line for _, event, line in tape if event == "commit")
    if what == "out of order":
        first["t"], second["t"] = 2, 1
    elif what == "left out":
        third["t"] = 5
    elif what == "wrong fragment":
        third["fragment"] = 1
    elif what == "wrong version":
        third["version"] = 2
    elif what == "void with a version":
        third["void"] = True
    elif what == "below min_islands":
        del third["contributions"][1]
    elif what == "anchor twice":
        third["contributions"][0]["base_version"] = 0
    elif what == "step twice":
        third["contributions"][0]["steps"] = 3
    elif what == "merged twice":
        second["contributions"][0]["push"] = "a"
    elif what == "merged and dropped":
        tape.append((9.0, "dropped", {"island": 0, "push": "a"}))
    elif what == "dropped twice":
        tape.append((9.0, "dropped", {"island": 1, "push": "x"}))
    elif what == "island order":
        third["contributions"].reverse()
    return tape


@pytest.mark.parametrize(
    "what",
    [
        "out of order",
        "left out",
        "wrong fragment",
        "wrong version",
        "void with a version",
        "below min_islands",
        "anchor twice",
        "step twice",
        "merged twice",
        "merged and dropped",
        "dropped twice",
        "island order",
    ],
)
def test_a_planted_bug_is_caught(what: str) -> None:
    with pytest.raises(AssertionError):
        check(planted(what), fragments=2, min_islands=2)
