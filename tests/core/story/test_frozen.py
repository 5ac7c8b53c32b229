"""Values of a brain to JSON and back; and what a file may not make of itself."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest

from swift_diloco.core.formats.messages import Outcome, PushAnswer, RankHello, ValueName
from swift_diloco.core.story.frozen import DEPTH_MAX, Freezer, StoryError, Thawer
from swift_diloco.island import events as island_events
from swift_diloco.island.events import BoundaryReached, Heard
from syncer import events as syncer_events
from syncer.brain.memory.deadlines import Deadlines
from syncer.brain.memory.roster import Member
from syncer.brain.memory.round import Round, Stage
from syncer.brain.memory.step_clock import StepClock

NAME = ValueName(1, 2, "digest")
ROUND = {"Round": "syncer.brain.memory.round"}


def there_and_back(value: object) -> Any:
    freezer = Freezer()
    frozen = json.loads(json.dumps(freezer.of(value)))
    return Thawer(freezer.classes).of(frozen)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 1, 0.1, -0.0, "text", math.inf, -math.inf, b"\x00\xff", (1, ("a",), ()), [1, [2]], {1, 2}, {},
        frozenset({"a"}), {(1, "b"): [None], 2: {}}, Counter("aab"), NAME, Stage.READY, Stage, Outcome.HELD,
        PushAnswer("s", "g", "p", Outcome.CARRIED), Heard(PushAnswer("s", "g", "p", Outcome.HELD)),
        BoundaryReached((NAME,)), 2**80,
    ],
    ids=repr,
)  # fmt: skip
def test_a_value_survives(value: object) -> None:
    back = there_and_back(value)
    assert back == value and type(back) is type(value) and repr(back) == repr(value)


def test_a_nan_survives() -> None:
    assert math.isnan(there_and_back(math.nan))


def test_objects_keep_their_identity_their_slots_and_their_methods() -> None:
    one, deadlines = Round(3, 1, 0.5, stage=Stage.MERGING), Deadlines()
    deadlines.set(("round", "3"), 4.0)
    rounds, uploads, again, method = there_and_back(({3: one}, {"push": (one, 0)}, deadlines, deadlines.next))
    assert rounds[3] is uploads["push"][0] and (rounds[3].t, rounds[3].stage) == (3, Stage.MERGING)
    assert method.__self__ is again and method() == 4.0


def test_what_refers_to_itself_survives() -> None:
    ring: list[object] = [1]
    ring.append(ring)
    back = there_and_back(ring)
    assert back[1] is back and back[0] == 1


def test_secrets_are_replaced_where_they_stand_the_same_one_by_the_same_text() -> None:
    freezer = Freezer()
    member = Member(0, "gen", "SECRET-A", "nonce", "peer", "host", 1, "SECRET-B", 1, StepClock(0), 0.0)
    frozen = freezer.of(
        (
            member,
            RankHello("s", "gen", "SECRET-A", 0, ()),
            RankHello("s", "gen", "", 0, ()),
            RankHello("f", "f", "f", 0, ()),
        )
    )
    assert "SECRET" not in json.dumps(frozen)
    back, introduce, empty, same = Thawer(freezer.classes).of(frozen)
    assert back.token == introduce.token == freezer.secrets["SECRET-A"] != back.instance
    assert empty.token == "" and back.generation == "gen"
    assert same.session == same.generation == "f" != same.token


def test_two_classes_of_one_name_are_told_apart() -> None:
    both = (island_events.Log("info", "a"), syncer_events.Log("info", "b"))
    assert there_and_back(both) == both


def test_a_long_collection_of_an_effect_is_told_by_number_and_checksum() -> None:
    first, second = (Freezer().brief(tuple(range(n, n + 1000))) for n in (0, 1))
    assert first["long"] == second["long"] == 1000 and first["checksum"] != second["checksum"]
    with pytest.raises(StoryError, match="long 1000 cannot be made from a file"):
        Thawer({}).of({"long": 1000})


def test_a_function_is_named_and_cannot_be_used() -> None:
    with pytest.raises(StoryError, match=r"the brain needs tests\..*<lambda>, which is no part of a dump"):
        there_and_back(lambda: None)()


@pytest.mark.parametrize(
    ("classes", "frozen", "reason"),
    [
        ({"Popen": "subprocess"}, {"Popen": {"args": "true"}}, "Popen of subprocess is not made from a file"),
        ({"Path": "pathlib"}, None, "is not made from a file"),
        ({"x": "syncer.server"}, None, "is not made from a file"),
        ({"x": "syncer.brain..os"}, None, "is not made from a file"),
        ({"x": "syncer.brain.memory.nothing"}, None, "has no class x; was the dump made by another version"),
        ({"StepClock": "syncer.brain.memory.roster"}, None, "has no class StepClock"),
        ({"UserError": "syncer.brain.memory.snapshot"}, None, "has no class UserError"),
        ({"restore": "syncer.brain.memory.snapshot"}, None, "has no class restore"),
        ({}, {"Round": {}}, "Round {} cannot be made from a file"),
        ({}, {"ref": 7}, "no value that was frozen here"),
        ({}, {"list": 7}, "no value that was frozen here"),
        ({}, {"list": [], "set": []}, "no value that was frozen here"),
        ({}, {"bytes": "zz"}, "no value that was frozen here"),
        ({}, {}, "no value that was frozen here"),
        ({"Stage": "syncer.brain.memory.round"}, {"Stage": "NONE"}, "no value that was frozen here"),
        ({"ValueName": "swift_diloco.core.formats.messages"}, {"ValueName": {"x": 1}}, "no value that was frozen here"),
        (ROUND, {"Round": {"__class__": 1}}, "has no field '__class__'"),
        (ROUND, {"Round": {"validate": 1}}, "has no field 'validate'"),
        (ROUND, {"Round": {"present": 1}}, "has no field 'present'"),
        (ROUND, {"method": [{"Round": {}}, "__reduce__"]}, "has no method"),
        (ROUND, {"method": [{"Round": {}}, "t"]}, "has no method"),
        (ROUND, {"method": [{"Round": {}}, []]}, "no value that was frozen here"),
    ],
)  # fmt: skip
def test_what_a_file_may_not_make_is_refused(classes: dict[str, str], frozen: object, reason: str) -> None:
    with pytest.raises(StoryError, match=reason):
        Thawer(classes).of(frozen)


def test_depth_has_a_limit_both_ways() -> None:
    deep: object = ()
    for _ in range(DEPTH_MAX + 1):
        deep = (deep,)
    with pytest.raises(StoryError, match=f"deeper than {DEPTH_MAX}"):
        Freezer().of(deep)
    with pytest.raises(StoryError, match=f"deeper than {DEPTH_MAX}"):
        Thawer({}).of(json.loads("[" * 500 + "]" * 500))
