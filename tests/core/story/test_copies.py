"""Copies of what a brain's state is made of: nothing that can change is shared, and one object stays one object."""

from __future__ import annotations

from collections import Counter
from types import MethodType
from typing import Any

from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.story.copies import ATOMS, Copier
from syncer.brain.memory.deadlines import Deadlines
from syncer.brain.memory.round import Answer, Round, Stage


def copied(value: object) -> Any:
    return Copier(set(ATOMS)).of(value)


def test_what_can_change_is_copied_and_what_cannot_is_shared() -> None:
    name, members = ValueName(1, 2, "digest"), (ValueName(0, 0, "d"), 1)
    before: Any = {"list": [[name], 1], "set": {1, 2}, "counter": Counter("aab"), ("t", 1): members, 1: Stage.READY}
    after = copied(before)
    assert after == before and after is not before
    assert after["list"] is not before["list"] and after["list"][0] is not before["list"][0]
    assert after["list"][0][0] is name and after[("t", 1)] is members
    assert after["set"] is not before["set"] and type(after["counter"]) is Counter


def test_one_object_is_one_object_in_the_copy() -> None:
    one = Round(1, 0, 0.0)
    after = copied([{1: one}, {"upload": (one, 3)}])
    assert after[0][1] is after[1]["upload"][0] is not one
    after[0][1].members[4] = "generation"
    assert one.members == {}


def test_a_struct_that_can_change_is_copied_with_what_it_holds() -> None:
    facts: dict[str, Any] = {"push": "g.1", "island": 1, "generation": "g", "anchor": ValueName(0, 0, "d"), "lag": 0}
    one = Answer(**facts, steps=2, tokens=4, capture_step=2, weight=8.0)
    after = copied([one, one])
    assert after == [one, one] and after[0] is after[1] is not one and after[0].anchor is one.anchor
    after[0].complete = True
    assert not one.complete


def test_a_bound_method_belongs_to_the_copy() -> None:
    deadlines = Deadlines()
    method, owner = copied((deadlines.set, deadlines))
    assert isinstance(owner, Deadlines)
    assert isinstance(method, MethodType) and method.__self__ is owner is not deadlines
    method(("lease", "a"), 1.0)
    assert (len(owner), len(deadlines)) == (1, 0)


def test_what_is_not_of_the_brains_is_shared_and_told() -> None:
    class Foreign:
        pass

    foreign, copier = Foreign(), Copier(set(ATOMS))
    assert copier.of([foreign, foreign]) == [foreign, foreign] and copier.foreign == [foreign]


def test_size_grows_with_what_is_looked_at() -> None:
    sizes = []
    for count in (10, 1000):
        copier = Copier(set(ATOMS))
        copier.of([Round(t, 0, 0.0) for t in range(count)])
        sizes.append(copier.size)
    assert 50 < sizes[1] / sizes[0] <= 100
