"""Typed settings from strings and YAML values: how one value is read, described and refused.

Works on any frozen `msgspec.Struct` whose fields were made with `setting(...)`. Does not know which settings there
are, nor where values come from (`settings.py`).

Invariant: a value that passed `read_value` has exactly the field's type and lies within its bounds.
"""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from swift_diloco.core.errors import UserError

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})

Value = int | float | bool | str


class Setting(msgspec.Struct, frozen=True):
    """What is known about one setting beside its type and default."""

    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    available: bool = True
    """False: the name is reserved and a value other than the default is refused, never ignored."""


class Field(msgspec.Struct, frozen=True):
    """One setting with its name, type and default."""

    name: str
    kind: type
    choices: tuple[str, ...]
    default: Value
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
        if self.info.minimum is not None and self.info.maximum is not None:
            words += f" from {self.info.minimum:g} to {self.info.maximum:g}"
        elif self.info.minimum is not None:
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


def refuse_unknown(names: Iterable[str], fields: Mapping[str, Field], *, written: str, where: str) -> None:
    """Raise on the first name that is no setting. `written` says how a name is spelt there, with `{}` in its place."""
    for name in names:
        if name not in fields:
            near = written.replace("{}", nearest(name.lower(), fields))
            spelt = written.replace("{}", name)
            raise UserError(f"unknown setting {spelt} in {where}; the nearest valid name is {near}")


def read_value(field: Field, raw: object, *, spelling: str) -> Value:
    """Turn what a user wrote, text or a YAML scalar, into the setting's type; raise `UserError` naming `spelling`."""
    value = _read(field, raw)
    if value is None or not _within(field.info, value):
        raise UserError(f"{spelling} is {raw!r}; expected {field.expected} (default {field.default!r})")
    return value


def refuse_unavailable(field: Field, value: Value, *, spelling: str) -> None:
    """Raise when a setting that does nothing yet has another value than its default."""
    if not field.info.available and value != field.default:
        raise UserError(
            f"{spelling} is {value!r}, which is not available yet; leave it at its default {field.default!r}"
        )


def _read(field: Field, raw: object) -> Value | None:
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


def _within(info: Setting, value: Value) -> bool:
    """Whether a number lies within its bounds; other types have none."""
    if isinstance(value, str | bool):
        return True
    if info.minimum is not None and value < info.minimum:
        return False
    return info.maximum is None or value <= info.maximum


ENVIRONMENT_PREFIX = "YETO_DILOCO_"


def _merge(fields: Mapping[str, Field], layers: Sequence[tuple[Mapping[str, object], str]]) -> dict[str, Value]:
    """Values of all layers, later ones winning. Every value is checked, also one that a later layer replaces."""
    values: dict[str, Value] = {}
    for layer, spelling in layers:
        for name, raw in layer.items():
            written = name.upper() if spelling.startswith(ENVIRONMENT_PREFIX) else name
            spelt = spelling.replace("{}", written)
            value = read_value(fields[name], raw, spelling=spelt)
            refuse_unavailable(fields[name], value, spelling=spelt)
            values[name] = value
    return values
