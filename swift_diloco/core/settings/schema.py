"""Typed settings from strings and YAML values: how one value is read, described and refused.

Works on any frozen `msgspec.Struct` whose fields are `Annotated[type, Setting(...)]`. Does not know which settings
there are, nor where values come from.

Invariant: a value that passed `read_value` has exactly the field's type and lies within its bounds.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from swift_diloco.core.errors import UserError

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})

SettingValue = int | float | bool | str
Schema = TypeVar("Schema", bound=msgspec.Struct)


class Setting(msgspec.Struct, frozen=True):
    """What is known about one setting beside its type and default."""

    help: str
    unit: str = ""
    minimum: float = -math.inf
    maximum: float = math.inf
    kept: bool = False
    """A run keeps it from its start to its end: what is learned from what, and how it is merged."""


class Field(msgspec.Struct, frozen=True):
    """One setting with its name, type and default."""

    name: str
    kind: type
    choices: tuple[str, ...]
    default: SettingValue
    info: Setting

    @property
    def expected(self) -> str:
        """What a value of this setting looks like, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return "a text"
        words = "a whole number" if self.kind is int else "a number"
        if math.isfinite(self.info.maximum):
            words += f" from {self.info.minimum:g} to {self.info.maximum:g}"
        elif math.isfinite(self.info.minimum):
            words += f" of at least {self.info.minimum:g}"
        return f"{words} ({self.info.unit})" if self.info.unit else words


def fields_of(schema: type[msgspec.Struct]) -> dict[str, Field]:
    """The settings of a schema by name, in the order they are written."""
    hints = get_type_hints(schema, include_extras=True)
    return {each.name: _field(each.name, hints[each.name], each.default) for each in msgspec.structs.fields(schema)}


def _field(name: str, hint: Any, default: Any) -> Field:
    """Take `Annotated[type, Setting]` apart."""
    assert get_origin(hint) is Annotated, f"setting {name} has no description"
    kind, info = get_args(hint)
    choices = tuple(get_args(kind)) if get_origin(kind) is Literal else ()
    return Field(name=name, kind=str if choices else kind, choices=choices, default=default, info=info)


def nearest(name: str, valid: Iterable[str]) -> str:
    """The valid name most like `name`; there is always one, however far, unless nothing is valid."""
    ordered = sorted(valid)
    if not ordered:
        return "(none)"
    close = difflib.get_close_matches(name, ordered, n=1, cutoff=0.0)
    return close[0] if close else ordered[0]


class Source(msgspec.Struct, frozen=True):
    """The settings that a user wrote in one place, by name."""

    values: Mapping[str, object]
    where: str
    """The place, in words."""
    spell: Callable[[str], str]
    """How a setting is written there."""
    is_file: bool = False
    """The spelling alone does not tell the place."""


def read_settings(schema: type[Schema], fields: Mapping[str, Field], sources: Sequence[Source]) -> Schema:
    """The settings of all sources, later ones winning. Every value is checked, also one that a later source replaces.
    Raises `UserError`."""
    values: dict[str, SettingValue] = {}
    for source in sources:
        refuse_unknown(source.values, fields, where=source.where, spell=source.spell)
        place = f" of {source.where}" if source.is_file else ""
        for name, raw in source.values.items():
            values[name] = read_value(fields[name], raw, spelling=source.spell(name) + place)
    return msgspec.convert(values, schema)


def refuse_unknown(
    names: Iterable[str], fields: Mapping[str, Field], *, where: str, spell: Callable[[str], str] = str
) -> None:
    """Raise `UserError` on the first name that is no setting."""
    for name in names:
        if name not in fields:
            near = spell(nearest(name.lower(), fields))
            raise UserError(f"unknown setting {spell(name)} in {where}; the nearest valid name is {near}")


def read_value(field: Field, raw: object, *, spelling: str) -> SettingValue:
    """Turn what a user wrote, text or a YAML scalar, into the setting's type; raise `UserError` naming `spelling`."""
    value = _read(field, raw)
    if value is None or not (isinstance(value, str) or field.info.minimum <= value <= field.info.maximum):
        raise UserError(f"{spelling} is {raw!r}; expected {field.expected} (default {field.default!r})")
    return value


def _read(field: Field, raw: object) -> SettingValue | None:
    """The value, or None when it cannot be read as the field's type."""
    if field.choices:
        return _read_choice(field.choices, raw)
    if field.kind is bool:
        return _read_bool(raw)
    if field.kind is str:
        return raw if isinstance(raw, str) else str(raw) if isinstance(raw, int | float) else None
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    return _read_number(field.kind, raw)


def _read_choice(choices: tuple[str, ...], raw: object) -> str | None:
    """One of the words. YAML reads a bare `on` or `off` as a truth value, so those are taken back."""
    truth = _read_bool(raw)
    if set(choices) == {"on", "off"} and truth is not None:
        return "on" if truth else "off"
    word = str(raw).strip().lower()
    return word if word in choices else None


def _read_bool(raw: object) -> bool | None:
    """A truth value, or None."""
    word = str(raw).strip().lower()
    if word in TRUE_WORDS:
        return True
    return False if word in FALSE_WORDS else None


def _read_number(kind: type, raw: int | float | str) -> int | float | None:
    """An int or a finite float, or None. `24.0` is no whole number: the user meant something else."""
    try:
        if kind is int:
            return int(raw) if isinstance(raw, int | str) else None
        number = float(raw)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
