"""What a kill cost, in numbers: from the tape, from what the islands said, and from when the faults struck."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec

from swift_diloco.core.formats import tape_lines
from tests.e2e.chaos.scenario import SYNCER
from tests.e2e.chaos.world import Struck, World

SETTLED_S = 1.5
"""A death is judged by itself when nothing else happened within this time."""

AWAY_S = 1.0


class Cost(msgspec.Struct, frozen=True):
    """Of one island's process death (kill or term). None: it did not come to that before the run ended."""

    survivors_commit_s: float | None
    """From the death to the first outer step without the victim; None also where the settings forbid one, and where
    the victim was back before a second had passed."""
    contributes_again_s: float | None
    """From the death to the first outer step with what the victim learned in its next life."""
    contributes_after_start_s: float | None
    """The same, from the start of the next life."""
    steps_lost: int
    """Local steps that were in neither its checkpoint nor a push that was merged, of the fragment that lost most."""
    steps_again: int
    """Local steps from its checkpoint to its death."""
    survivors_blocked_s: float | None
    """Longest time that one step boundary of a survivor took until the victim contributed again; None as above."""


def costs(world: World) -> list[Cost]:
    """One per process death of an island that was training."""
    kills = [s for s in world.struck if s.fault.victim != SYNCER and s.fault.how != "stop"]
    return [_cost(world, struck) for struck in kills if struck.step > 0 and struck.fault.on not in ("finish", "final")]


def _cost(world: World, struck: Struck) -> Cost:
    tape, victim = world.syncer.tape, struck.fault.victim
    commits = [line for line in tape if isinstance(line, tape_lines.Commit) and not line.void]
    later = [line for line in commits if line.time > struck.at]
    again = _time(line for line in later if _part(line, victim, _generations(tape, victim, struck.at)))
    without = _time(line for line in later if not _part(line, victim, None))
    disturbed = any(other is not struck and _overlap(other, struck) for other in world.struck)
    alone = world.scenario.survivors_may_commit and not disturbed
    away = alone and struck.back_at > struck.at + AWAY_S
    resumed = _resumed_at(world, struck)
    pushed = [
        max(
            (
                p.capture_step
                for c in commits
                if c.fragment == f
                for p in c.contributions
                if _of(p, victim, tape, struck)
            ),
            default=0,
        )
        for f in sorted({line.fragment for line in commits})
    ]
    return Cost(
        survivors_commit_s=without - struck.at if away and without is not None else None,
        contributes_again_s=again - struck.at if again is not None else None,
        contributes_after_start_s=again - struck.back_at if again is not None else None,
        steps_lost=max(0, struck.step - max(resumed, min(pushed, default=0))),
        steps_again=max(0, struck.step - resumed),
        survivors_blocked_s=_blocked(world, struck, again) if alone else None,
    )


def _overlap(other: Struck, struck: Struck) -> bool:
    """Whether another fault's victim was away, or just back, around this death."""
    gone = other.at < struck.at + SETTLED_S
    return gone and (not other.back_at or other.back_at > struck.at - SETTLED_S)


def _of(part: tape_lines.Contribution, victim: int, tape: Sequence[tape_lines.TapeLine], struck: Struck) -> bool:
    """Whether it is of the victim's life before its death."""
    return part.island == victim and part.generation not in _generations(tape, victim, struck.at)


def _generations(tape: Sequence[tape_lines.TapeLine], island: int, since: float) -> set[str]:
    """The joinings of an island after a time."""
    joined = (line for line in tape if isinstance(line, tape_lines.Joined) and line.island == island)
    return {line.generation for line in joined if line.time > since}


def _part(commit: tape_lines.Commit, island: int, generations: set[str] | None) -> bool:
    """Whether the island (in one of these generations) contributed to the commit."""
    parts = [part for part in commit.contributions if part.island == island and part.steps > 0]
    return any(generations is None or part.generation in generations for part in parts)


def _time(lines: Iterable[tape_lines.Line]) -> float | None:
    return next((line.time for line in lines), None)


def _resumed_at(world: World, struck: Struck) -> int:
    """The step at which the victim's next life began."""
    said = world.islands[struck.fault.victim].said
    return next((row["step"] for row in said if row.get("event") == "started" and row["time"] > struck.at), struck.step)


def _blocked(world: World, struck: Struck, until: float | None) -> float:
    """The longest boundary of any survivor. Each step tells how long all boundaries before it took."""
    longest = 0.0
    for island in world.islands:
        if island.number == struck.fault.victim:
            continue
        steps = [row for row in island.said if "blocked_s" in row and "time" in row]
        for before, after in pairwise(steps):
            during = after["time"] >= struck.at and (until is None or before["time"] <= until)
            if during and after["life"] == before["life"]:
                longest = max(longest, after["blocked_s"] - before["blocked_s"])
    return longest


def summary(all_costs: Sequence[Cost]) -> dict[str, Any]:
    """Median, maximum and number of each figure."""
    table: dict[str, Any] = {}
    for field in msgspec.structs.fields(Cost):
        values = [value for cost in all_costs if (value := getattr(cost, field.name)) is not None]
        if values:
            table[field.name] = {
                "median": round(median(values), 3),
                "max": round(max(values), 3),
                "kills": len(values),
            }
    return table
