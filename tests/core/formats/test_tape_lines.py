"""The bytes of every line of the tape, pinned; and what a reader refuses, with words that say where and why."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.formats.tape_lines import (
    FORMAT,
    Commit,
    Contribution,
    Final,
    Line,
    Opened,
    Stateless,
    TapeError,
    TapeLine,
    decode,
    decode_all,
    encode,
)

GOLDEN = Path(__file__).parent / "golden_tape.jsonl"
"""One line of each kind. A change of these bytes needs another FORMAT."""

LINES = GOLDEN.read_bytes().splitlines(keepends=True)


def known(raw: bytes) -> TapeLine:
    line = decode(raw, 1)
    assert line is not None
    return line


def test_the_golden_tape_has_every_kind_of_line_once_and_in_order() -> None:
    assert [type(known(raw)) for raw in LINES] == list(get_args(TapeLine))


@pytest.mark.parametrize("raw", LINES, ids=lambda raw: type(known(raw)).__name__)
def test_a_line_is_read_and_written_back_byte_for_byte(raw: bytes) -> None:
    line = known(raw)
    assert encode(line, line.time) == raw


def test_a_line_begins_with_its_event_and_the_time_of_its_writer() -> None:
    assert encode(Stateless(island=1), 12.3456789) == b'{"event":"stateless","time":12.345679,"island":1}\n'


def test_a_line_of_the_writers_before_opened_whose_time_came_first_is_read() -> None:
    assert known(b'{"time":12.5,"event":"final","t":3,"versions":[3,2]}') == Final(time=12.5, t=3, versions=(3, 2))


def test_carried_is_told_only_of_those_that_were() -> None:
    (part,) = (line for line in map(known, LINES) if isinstance(line, Commit))
    assert [each.carried for each in part.contributions] == [True, False]
    assert encode(part, 1.0).count(b'"carried"') == 1


REFUSED = {
    "an unknown event": (b'{"event":"moon","time":1.0}', "event 'moon'.*Invalid value 'moon'.*expected an event of op"),
    "no event": (b'{"time":1.0}', "event ''.*missing required field `event`"),
    "an unknown field": (
        b'{"event":"stateless","time":1.0,"island":1,"moon":2}',
        r"line 7 of the tape \(event 'stateless'\): Object contains unknown field `moon`; "
        r"expected the fields time, island; found {.event.:.*moon.*; read a tape with",
    ),
    "a missing field": (b'{"event":"stateless","time":1.0}', "missing required field `island`"),
    "a missing time": (b'{"event":"stateless","island":1}', "missing required field `time`"),
    "a wrong type": (b'{"event":"stateless","time":1.0,"island":"1"}', r"Expected `int`, got `str` - at `\$.island`"),
    "an unknown field inside": (
        b'{"event":"init","time":1.0,"run":"r","fragments":[{"id":0,"tensors":1,"elements":1,"bytes":4,"moon":1}],'
        b'"layout":"l"}',
        r"unknown field `moon` - at `\$.fragments\[0\]`",
    ),
    "no object": (b"[1]", "Expected `object`, got `array`"),
    "another format": (b'{"event":"opened","time":1.0,"format":2}', "are of format 2, and this reads 1"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_format_does_not_have_is_refused_with_line_event_and_what_was_expected(what: str) -> None:
    raw, text = REFUSED[what]
    with pytest.raises(TapeError, match=text) as caught:
        decode(raw, 7)
    assert isinstance(caught.value, UserError) and str(caught.value).startswith("line 7 of the tape")


@pytest.mark.parametrize("raw", LINES, ids=lambda raw: type(known(raw)).__name__)
def test_a_line_that_was_torn_off_anywhere_is_passed_over(raw: bytes) -> None:
    assert [end for end in range(len(raw) - 1) if decode(raw[:end], 1) is not None] == []
    assert [line for _, line in decode_all([raw[:-3] + b"\n", raw])] == [None, known(raw)]


def test_a_long_line_is_repeated_in_its_refusal_only_so_far() -> None:
    with pytest.raises(TapeError) as caught:
        decode(b'{"event":"stopped","time":1.0,"reason":[' + b"1," * 10_000 + b"1]}", 1)
    assert len(str(caught.value)) < 500


def test_the_brain_need_not_know_the_time_and_a_frozen_line_keeps_what_it_says() -> None:
    line = Opened(format=FORMAT)
    assert line.time == 0.0
    with pytest.raises(AttributeError):
        line.format = 2  # type: ignore[misc]


def test_every_field_of_every_line_is_needed_but_carried_and_the_time() -> None:
    structs: list[type[msgspec.Struct]] = [*get_args(TapeLine), Contribution]
    optional = {field.name for kind in structs for field in msgspec.structs.fields(kind) if not field.required}
    assert optional == {"time", "carried"} and all(issubclass(kind, Line) for kind in get_args(TapeLine))


def test_a_line_that_no_killed_process_can_have_left_so_is_refused() -> None:
    """Only the last line of a process may be torn off: then the next one opens the tape, or nothing follows."""
    opened, line = encode(Opened(format=FORMAT), 1.0), encode(Stateless(island=1), 2.0)
    torn = line[:9] + b"\n"
    kinds = [None if read is None else type(read) for _, read in decode_all([opened, torn, torn, opened, line, torn])]
    assert kinds == [Opened, None, None, Opened, Stateless, None]
    with pytest.raises(TapeError, match="line 2 of the tape is damaged: .* it is followed by Stateless"):
        list(decode_all([opened, torn, line]))
