"""A story as text: what is left out where it is long, what is refused, and what people see."""

from __future__ import annotations

from typing import Any

import pytest

from swift_diloco.core.story import dump as dumps
from swift_diloco.core.story.dump import (
    FORMAT,
    LINE_CHARACTERS_MAX,
    Dump,
    Raised,
    Told,
    lines,
    parsed,
    text_of,
    written,
)
from swift_diloco.core.story.frozen import StoryError

EVENTS = [Told(float(i), {"Tick": {"n": i}}, effects=[{"Do": {"what": "x"}}]) for i in range(3)]
DUMP = Dump("syncer", FORMAT, Raised("AssertionError", "planted"), {"Tick": "m"}, {"n": 1}, EVENTS)


def test_dump_is_read_as_it_was_written() -> None:
    assert parsed(written(DUMP)) == DUMP


def test_dump_that_is_too_long_loses_its_state_and_then_its_oldest_events() -> None:
    large = Dump("syncer", FORMAT, None, {}, ["s" * 5000], [Told(float(i), "e" * 5000, effects=[]) for i in range(3)])
    assert parsed(written(large, 30_000)) == large
    found = [parsed(written(large, bytes_max)) for bytes_max in (18_000, 12_000, 7_000)]
    assert [dump.state for dump in found] == [None] * 3
    assert [dump.events for dump in found] == [large.events, large.events[1:], large.events[2:]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "not a dump of a story"),
        ("[" * 100_000, "not a dump of a story"),
        ("[]", "not a dump of format 1, but None"),
        ('{"format": 2}', "not a dump of format 1, but 2; read it with the version that wrote it"),
        ('{"format": 1}', "missing required field"),
    ],
    ids=["no JSON", "deep", "no object", "later", "short of fields"],
)
def test_what_is_no_dump_is_refused(text: str, said: str) -> None:
    with pytest.raises(StoryError, match=said):
        parsed(text)


def test_dump_is_refused_by_its_size_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "DUMP_BYTES_MAX", 10)
    with pytest.raises(StoryError, match="a dump of 11 bytes; at most 10 are read"):
        parsed("x" * 11)


def test_people_see_each_event_with_its_effects_and_what_was_raised_last() -> None:
    shown = lines(DUMP, newest=2)
    assert shown == [
        "the last 2 events of syncer (time in s, event, its effects):",
        "       1.000 Tick(n=1)",
        "              Do(what='x')",
        "       2.000 Tick(n=2)",
        "              Do(what='x')",
        "              raised AssertionError: planted",
    ]


def test_lines_are_cut_where_they_are_long() -> None:
    long = Dump("syncer", FORMAT, None, {}, None, [Told(0.0, "x" * 2 * LINE_CHARACTERS_MAX, effects=[])])
    (_, line) = lines(long)
    assert len(line) == LINE_CHARACTERS_MAX and line.endswith("…")


@pytest.mark.parametrize(
    ("frozen", "text"),
    [
        (3, "3"),
        ("a", "'a'"),
        ([1], "(1,)"),
        ([1, "b"], "(1, 'b')"),
        ({"list": [1, 2]}, "[1, 2]"),
        ({"dict": [["a", 1]]}, "{'a': 1}"),
        ({"long": 9}, "<9 elements>"),
        ({"Tick": {"n": 1}, "id": 4}, "Tick(n=1)"),
        ({"Phase": "INIT"}, "Phase.INIT"),
        ({"same": 4}, "4"),
    ],
)
def test_frozen_value_is_shown_as_python_would(frozen: Any, text: str) -> None:
    assert text_of(frozen) == text
