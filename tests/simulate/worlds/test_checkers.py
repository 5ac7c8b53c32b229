"""Each checker objects to one bug in a history that is otherwise good, and to nothing in the good one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from msgspec.structs import replace

from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.formats.tape_lines import Commit, Contribution, Dropped, Resumed
from swift_diloco.simulate.worlds.checkers import Rules, Violation, check, commits
from swift_diloco.simulate.worlds.truth import Captured, History, Merged

RULES = Rules(fragments=2, min_islands=2)
NAME = ValueName(0, 1, "1.5")


def part(island: int, push: str, base: int, **changes: Any) -> Contribution:
    given = Contribution(
        island=island,
        generation=f"g{island}",
        push=push,
        base_version=base,
        lag=0,
        steps=2,
        tokens=20,
        weight=1.0,
        bytes=16,
        capture_step=2,
    )
    return replace(given, **changes)


def commit(t: int, *parts: Contribution) -> Commit:
    return Commit(
        t=t,
        fragment=(t - 1) % 2,
        version=t,
        digest=f"d{t}",
        void=False,
        contributions=parts,
        offenders=(),
        quorum_s=0.0,
        round_s=0.0,
        merge_s=0.0,
    )


def dropped(island: int, push: str) -> Dropped:
    return Dropped(island=island, push=push, t=1, fragment=0, reason="why")


def resumed(t: int) -> Resumed:
    return Resumed(t=t, run="run", versions=(), carried=())


def good() -> History:
    history = History(
        tape=[
            commit(1, part(0, "a", 0), part(1, "b", 0)),
            commit(2, part(0, "c", 0), part(1, "d", 0)),
            dropped(1, "x"),
            commit(3, part(0, "e", 1), part(1, "late", -1, carried=True), part(1, "f", 1)),
        ],
        published=[(NAME, 1.5)],
        installed=[(0, NAME, 1.5)],
        merged=[Merged(t, (t - 1) % 2, f"p{t}", frozenset({(0, "life", t)})) for t in (1, 2, 3)],
        captured=[Captured("a", 1, frozenset({(0, "life", 1)}))],
        opened=["a", "b"],
        ended=["b", "a"],
        resumed=[(3, 2)],
    )
    return history


def change(history: History, of: int, /, **changes: Any) -> None:
    """Change the commit line of an outer step."""
    (at,) = (i for i, line in enumerate(history.tape) if isinstance(line, Commit) and line.t == of)
    history.tape[at] = replace(history.tape[at], **changes)


def change_parts(history: History, t: int, changed: Callable[[tuple[Contribution, ...]], Any]) -> None:
    """Change the contributions of an outer step."""
    (line,) = (line for line in history.lines(Commit) if line.t == t)
    change(history, t, contributions=changed(line.contributions))


def test_a_good_history_passes() -> None:
    check(good(), RULES)


BUGS: dict[str, Callable[[History], object]] = {
    "out of order": lambda h: h.tape.reverse(),
    "left out": lambda h: change(h, 3, t=5),
    "wrong fragment": lambda h: change(h, 3, fragment=1),
    "wrong version": lambda h: change(h, 3, version=2),
    "void with a version": lambda h: change(h, 3, void=True),
    "below min_islands": lambda h: change_parts(h, 2, lambda parts: parts[:-1]),
    "island order": lambda h: change_parts(h, 3, lambda parts: parts[::-1]),
    "an island twice": lambda h: change_parts(h, 2, lambda parts: (*parts, part(1, "y", 0))),
    "anchor twice": lambda h: change_parts(h, 3, lambda parts: (part(0, "e", 0), *parts[1:])),
    "unit twice": lambda h: h.merged.append(Merged(4, 0, "again", frozenset({(0, "life", 1)}))),
    "merged twice": lambda h: change_parts(h, 2, lambda parts: (part(0, "a", 0), *parts[1:])),
    "merged and dropped": lambda h: h.tape.append(dropped(0, "a")),
    "dropped twice": lambda h: h.tape.append(dropped(1, "x")),
    "steps not told": lambda h: h.captured.append(Captured("z", 2, frozenset())),
    "two values of a name": lambda h: h.published.append((NAME, 2.5)),
    "installed what was not published": lambda h: h.installed.append((1, NAME, 2.5)),
    "never freed": lambda h: h.opened.append("c"),
    "freed twice": lambda h: h.ended.append("a"),
    "opened twice": lambda h: h.opened.append("a"),
    "durable step lost": lambda h: h.resumed.append((1, 2)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_caught(bug: str) -> None:
    history = deepcopy(good())
    BUGS[bug](history)
    with pytest.raises(Violation):
        check(history, RULES)


def test_a_restart_takes_back_what_came_after_its_checkpoint() -> None:
    history = good()
    history.tape += [resumed(1), commit(2, part(0, "g", 0), part(1, "h", 0))]
    assert [each.t for each in commits(history)] == [1, 2]
    check(history, RULES)
    history.tape.append(commit(4, part(0, "i", 0), part(1, "j", 0)))
    with pytest.raises(Violation, match="outer steps were committed as"):
        check(history, RULES)


def test_a_push_that_was_dropped_in_a_life_that_was_taken_back_may_be_merged() -> None:
    history = good()
    history.tape += [resumed(2), commit(3, part(0, "x", 1), part(1, "k", 1))]
    check(history, RULES)
