"""How one value is read, described and refused."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.schema import (
    Setting,
    SettingValue,
    Source,
    fields_of,
    nearest,
    read_settings,
    read_value,
    refuse_unknown,
)


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of each kind."""

    count: Annotated[int, Setting("how many", minimum=1, maximum=9)] = 2
    bytes_max: Annotated[int, Setting("at most", unit="bytes", minimum=0)] = 0
    wait_s: Annotated[float, Setting("how long", unit="s", minimum=0)] = 30.0
    shift: Annotated[float, Setting("any number")] = 0.0
    eager: Annotated[bool, Setting("whether")] = False
    name: Annotated[str, Setting("what")] = ""
    way: Annotated[Literal["left", "right"], Setting("where")] = "left"
    resume: Annotated[Literal["on", "off"], Setting("whether, in words")] = "on"


FIELDS = fields_of(Schema)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        *(("count", raw, 5) for raw in (5, "5")),
        *(("wait_s", raw, 5.0) for raw in (5, 5.0, "5", "5e0")),
        ("shift", -1e300, -1e300),
        *(("eager", raw, True) for raw in (True, "true", "on", "Yes", 1, "1")),
        *(("eager", raw, False) for raw in (False, "false", "off", "NO", 0, "0")),
        ("name", "on", "on"),
        ("name", 7, "7"),
        *(("way", raw, "right") for raw in ("right", " RIGHT ")),
        *(("resume", raw, "off") for raw in (False, "False", "off")),
        *(("resume", raw, "on") for raw in (True, "ON", "on")),
    ],
)
def test_a_value_is_read_as_the_settings_type_from_text_and_from_yaml(
    name: str, raw: object, value: SettingValue
) -> None:
    read = read_value(FIELDS[name], raw, spelling=name)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        *(("count", raw, "a whole number from 1 to 9 (default 2)") for raw in (0, 10, 1.5, 2.0, "2.0", "", "x", True)),
        *(("count", raw, "a whole number from 1 to 9 (default 2)") for raw in (None, [1])),
        ("bytes_max", -1, "a whole number of at least 0 (bytes) (default 0)"),
        *(
            ("wait_s", raw, "a number of at least 0 (s) (default 30.0)")
            for raw in ("nan", "inf", "-1", "", "1,5", "true")
        ),
        ("wait_s", True, "a number of at least 0 (s) (default 30.0)"),
        *(("shift", raw, "a number (default 0.0)") for raw in ("nan", "inf", "-inf", float("inf"))),
        ("eager", "2", "true or false (default False)"),
        ("name", None, "a text (default '')"),
        ("way", "up", "one of left, right (default 'left')"),
        ("way", "on", "one of left, right (default 'left')"),
        ("resume", "maybe", "one of on, off (default 'on')"),
    ],
)
def test_any_other_value_is_refused_with_what_is_expected(name: str, raw: object, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        read_value(FIELDS[name], raw, spelling="--it")
    assert str(caught.value) == f"--it is {raw!r}; expected {expected}"


def test_later_sources_win_and_each_complaint_is_spelt_as_its_source_spells_it() -> None:
    weak = Source({"count": 3, "wait_s": 1}, "file.yaml", "part.{}".format, is_file=True)
    strong = Source({"wait_s": "2"}, "the flags", "--{}".format)
    assert read_settings(Schema, FIELDS, [weak, strong]) == Schema(count=3, wait_s=2.0)
    for values, said in (
        ({"cuont": 3}, "unknown setting part.cuont in file.yaml; the nearest valid name is part.count"),
        ({"count": "x"}, "part.count of file.yaml is 'x'; expected a whole number from 1 to 9 (default 2)"),
    ):
        with pytest.raises(UserError) as caught:
            read_settings(Schema, FIELDS, [msgspec.structs.replace(weak, values=values), strong])
        assert str(caught.value) == said
    with pytest.raises(UserError, match="^--wait_s is '-2'; expected a number"):
        read_settings(Schema, FIELDS, [weak, msgspec.structs.replace(strong, values={"wait_s": "-2"})])


def test_an_unknown_name_is_refused_as_it_was_written() -> None:
    with pytest.raises(UserError, match=r"^unknown setting Cuont in here; the nearest valid name is count$"):
        refuse_unknown(["count", "Cuont"], FIELDS, where="here")


@pytest.mark.parametrize(("name", "valid", "near"), [("b", "c bb", "bb"), ("x", "b a", "b"), ("x", "", "(none)")])
def test_there_is_always_a_nearest_name(name: str, valid: str, near: str) -> None:
    assert nearest(name, valid.split()) == near
