"""One checker per property of a whole run. Each takes what the run left behind and raises `Violation` on a breach.

Knows no brain: a checker reads the tape and the truth beside it (`History`), so a bug in a brain cannot hide itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swift_diloco.core.formats.tape_lines import Commit, Contribution, Dropped, Init, Resumed
from swift_diloco.simulate.worlds.truth import History, Unit


class Violation(AssertionError):
    """A property that must hold did not."""


@dataclass(frozen=True)
class Rules:
    """What the checkers must know of the settings."""

    fragments: int
    min_islands: int


def require(holds: bool, text: str) -> None:
    """Raise unless a property holds."""
    if not holds:
        raise Violation(text)


def commits(history: History) -> list[Commit]:
    """Commits that are in the syncer's state: those after the outer step a restart went on from are taken back."""
    standing: list[Commit] = []
    for line in history.tape:
        match line:
            case Init():
                standing = []
            case Resumed():
                standing = [each for each in standing if each.t <= line.t]
            case Commit():
                standing.append(line)
    return standing


def fates(history: History) -> list[tuple[int, str, str]]:
    """(life of the syncer, push, fate) of every push that was merged or dropped; a restart may undo an earlier life."""
    told, life = [], 0
    for line in history.tape:
        match line:
            case Init() | Resumed():
                life += 1
            case Dropped():
                told.append((life, line.push, "dropped"))
            case Commit(void=False):
                told += [(life, part.push, "merged") for part in line.contributions if part.steps]
    return told


def merges(history: History) -> list[tuple[Commit, Contribution]]:
    """(commit, contribution) of every delta that became part of a value."""
    return [(line, part) for line in commits(history) if not line.void for part in line.contributions if part.steps]


def commits_are_in_order(history: History, rules: Rules) -> None:
    """Outer steps are committed one after the other, none twice, none left out."""
    steps = [line.t for line in commits(history)]
    require(steps == list(range(1, len(steps) + 1)), f"outer steps were committed as {steps}")


def versions_are_outer_steps(history: History, rules: Rules) -> None:
    """Step t changes fragment (t − 1) mod P to version t, or is void and changes nothing."""
    present = [0] * rules.fragments
    for line in commits(history):
        fragment = (line.t - 1) % rules.fragments
        version = present[fragment] if line.void else line.t
        require(line.fragment == fragment, f"outer step {line.t} changed fragment {line.fragment}")
        require(line.version == version, f"outer step {line.t} made version {line.version}")
        present[fragment] = version


def no_step_below_min_islands(history: History, rules: Rules) -> None:
    """Every step has at least `min_islands` contributors."""
    for line in commits(history):
        islands = {part.island for part in line.contributions}
        require(line.void or len(islands) >= rules.min_islands, f"outer step {line.t} had only {sorted(islands)}")


def floats_are_added_in_island_order(history: History, rules: Rules) -> None:
    """Contributions are in island order; an island has at most one, and one carried from before ahead of it."""
    for line in commits(history):
        order = [(part.island, not part.carried) for part in line.contributions]
        require(order == sorted(set(order)), f"outer step {line.t} added (island, in time) {order}")


def no_unit_is_merged_twice(history: History, rules: Rules) -> None:
    """No local step of any life of an island is in a fragment twice: by the truth, not by what anybody says."""
    seen: dict[tuple[int, Unit], int] = {}
    for each in history.merged:
        for unit in each.units:
            before = seen.get((each.fragment, unit))
            require(before is None, f"{unit} is in fragment {each.fragment} by outer steps {before} and {each.t}")
            seen[each.fragment, unit] = each.t


def no_anchor_is_merged_twice(history: History, rules: Rules) -> None:
    """No island's delta from one anchor is merged twice, as the tape tells it."""
    seen: dict[tuple[int, int, int], int] = {}
    for line, part in merges(history):
        key = (part.island, line.fragment, part.base_version)
        require(key not in seen, f"(island, fragment, base) {key} was merged by {seen.get(key)} and {line.t}")
        seen[key] = line.t


def every_push_has_one_fate(history: History, rules: Rules) -> None:
    """No push is both merged and dropped, and none is either of them twice."""
    merged = [part.push for _, part in merges(history)]
    require(len(set(merged)) == len(merged), "a push was merged twice")
    seen: dict[tuple[int, str], str] = {}
    for life, push, fate in fates(history):
        before = seen.setdefault((life, push), "")
        require(not before, f"push {push} was {before}, then {fate}")
        seen[life, push] = fate


def deltas_hold_what_is_told(history: History, rules: Rules) -> None:
    """The local steps that a push tells of are those that are in it."""
    for each in history.captured:
        require(each.steps == len(each.units), f"push {each.push} tells of {each.steps} steps, holds {len(each.units)}")


def one_value_per_name(history: History, rules: Rules) -> None:
    """The same name means the same bytes, wherever it is published or installed."""
    known = dict(history.published)
    require(len(known) == len(set(history.published)), "a name was published with two values")
    for island, name, value in history.installed:
        require(known.get(name) == value, f"island {island} installed {value} as {name}, which is {known.get(name)}")


def handles_balance(history: History, rules: Rules) -> None:
    """Whatever the syncer made room for, it made free again, once."""
    require(len(set(history.opened)) == len(history.opened), "an upload was opened twice")
    lost = sorted(set(history.opened) - set(history.ended))
    require(not lost, f"uploads that were never freed: {lost}")
    require(len(history.opened) == len(history.ended), "an upload was freed twice")


def durable_commits_survive(history: History, rules: Rules) -> None:
    """A restart of the syncer goes on from the newest finished checkpoint or a later one, never before it."""
    for went_on, durable in history.resumed:
        require(went_on >= durable, f"the syncer went on from outer step {went_on}; {durable} was durable")


Checker = Callable[[History, Rules], None]

CHECKERS: tuple[Checker, ...] = (
    commits_are_in_order,
    versions_are_outer_steps,
    no_step_below_min_islands,
    floats_are_added_in_island_order,
    no_unit_is_merged_twice,
    no_anchor_is_merged_twice,
    every_push_has_one_fate,
    deltas_hold_what_is_told,
    one_value_per_name,
    handles_balance,
    durable_commits_survive,
)


def check(history: History, rules: Rules) -> None:
    """All of them."""
    for checker in CHECKERS:
        checker(history, rules)
