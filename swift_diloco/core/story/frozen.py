"""Objects of a brain as plain JSON values and back: its state, its events and its effects.

    None, True, 7, 0.5, "text"           themselves
    (1, "a")                             [1, "a"]
    [1] · {1} · {"a": 1} · Counter       {"list": [1]} · {"set": [1]} · {"dict": [["a", 1]]} · {"counter": …}
    inf · b"\\x01"                        {"float": "inf"} · {"bytes": "01"}
    Stage.READY · the class Stage        {"Stage": "READY"} · {"class": "Stage"}
    an object · its bound method         {"Round": {"t": 3, …}} · {"method": [object, "name"]}
    a function, an object of others      {"foreign": "module.name"}, which cannot be used after thawing
    an object that was there before      {"ref": 7}, and "id": 7 beside the first one

Class names stand alone; a table beside the values says which module each is of. Secrets (`SECRET`) are replaced, the
same one by the same text, so that what compares them comes to the same end.

What is thawed comes from a file, so from anywhere: only classes of the modules in `OURS` are made, by name, without
calling any code of theirs but the constructors of msgspec; everything else is refused. Depth has a limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from importlib import import_module
from math import isfinite
from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any

import msgspec
import xxhash

from swift_diloco.core.errors import UserError
from swift_diloco.core.story.copies import is_ours, slots_of

Json = Any
"""What `json` reads and writes."""

SECRET = frozenset({"token", "instance"})
"""Fields whose text lets whoever knows it take a part: join tokens, the admin token, a run folder's instance token."""

DEPTH_MAX = 64
"""Deepest nesting of values; a brain's state has about twenty."""

LONG = 256
"""Elements from which a collection in an effect is told by its number and checksum: a checkpoint names every value."""

BUILTIN = {list: "list", set: "set", frozenset: "frozenset", dict: "dict", Counter: "counter"}
SELF = frozenset({int, str, bool, type(None)})
_ABSENT = object()


class StoryError(UserError):
    """A dump that cannot be read or replayed."""


class Foreign:
    """Stands where a function or an object was that is not a brain's own. A replay that needs it ends there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: object, **__: object) -> None:
        raise StoryError(f"the brain needs {self._name}, which is no part of a dump")


class Freezer:
    """Makes JSON values with `of`. Objects met twice by one freezer are one object again when they are thawed."""

    def __init__(
        self, classes: dict[str, str] | None = None, *, stand_ins: Mapping[type, str] | None = None, redact: bool = True
    ) -> None:
        self.classes: dict[str, str] = {} if classes is None else classes
        """Module by name of class."""
        self.secrets: dict[str, str] = {}
        """What each secret is replaced by."""
        self._stand_ins = stand_ins or {}
        self._redact = redact
        self._met: dict[int, tuple[Json, object]] = {}
        self._refs = 0
        self._depth = 0
        self._brief = False

    def of(self, value: object) -> Json:
        """A value of the state, or an event."""
        if self._depth > DEPTH_MAX:
            raise StoryError(f"a state nested deeper than {DEPTH_MAX}")
        self._depth += 1
        frozen = self._value(value)
        self._depth -= 1
        return frozen

    def forget(self) -> None:
        """What comes stands for itself: nothing in it refers to what came."""
        self._met.clear()

    def brief(self, value: object) -> Json:
        """An effect: long collections are told by number and checksum. Not to be thawed."""
        self._brief = True
        frozen = self.of(value)
        self._brief = False
        return frozen

    def _value(self, value: Any) -> Json:
        kind = type(value)
        if kind in SELF:
            return value
        if kind is float:
            return value if isfinite(value) else {"float": repr(value)}
        if kind is bytes:
            return {"bytes": value.hex()}
        if kind is tuple:
            return self._long(value) or [self.of(each) for each in value]
        if isinstance(value, Enum):
            return {self._name(kind): value.name}
        if isinstance(value, type):
            return {"class": self._name(value)}
        if kind in self._stand_ins:
            return {"stand-in": self._stand_ins[kind]}
        return self._mutable(value, kind)

    def _mutable(self, value: Any, kind: type) -> Json:
        """What may be met again."""
        met = self._met.get(id(value))
        if met is not None and not self._brief:
            if "id" not in met[0]:
                self._refs += 1
                met[0]["id"] = self._refs
            return {"ref": met[0]["id"]}
        frozen: dict[str, Json] = {}
        if not self._brief:
            self._met[id(value)] = (frozen, value)  # holds the value, lest another one gets its id
        if kind in BUILTIN:
            frozen |= self._long(value) or {BUILTIN[kind]: self._elements(value, kind)}
        elif kind is MethodType:
            frozen["method"] = [self.of(value.__self__), value.__name__]
        elif isinstance(value, FunctionType) or not is_ours(kind.__module__):
            named = value if isinstance(value, FunctionType) else kind
            frozen["foreign"] = f"{named.__module__}.{named.__qualname__}"
        else:
            frozen[self._name(kind)] = self._fields(value, kind)
        return frozen

    def _elements(self, value: Any, kind: type) -> Json:
        if isinstance(value, dict):
            return [[self.of(key), self.of(each)] for key, each in value.items()]
        if kind is list:
            return [self.of(each) for each in value]
        return sorted((self.of(each) for each in value), key=repr)

    def _fields(self, value: Any, kind: type) -> Json:
        names: Iterable[str] = getattr(kind, "__struct_fields__", slots_of(kind))
        return {
            name: self._secret(each) if name in SECRET and type(each) is str else self.of(each)
            for name in (*names, *getattr(value, "__dict__", ()))
            if (each := getattr(value, name, _ABSENT)) is not _ABSENT
        }

    def _secret(self, text: str) -> str:
        if not text or not self._redact:
            return text
        return self.secrets.setdefault(text, f"secret-{len(self.secrets) + 1}")

    def _long(self, value: Any) -> dict[str, Json] | None:
        if not self._brief or len(value) < LONG:
            return None
        return {"long": len(value), "checksum": xxhash.xxh3_64_hexdigest(repr(value).encode("utf-8", "replace"))}

    def _name(self, kind: type) -> str:
        """The short name of a class; the long one where two have the same."""
        known = self.classes.setdefault(kind.__name__, kind.__module__)
        if known == kind.__module__:
            return kind.__name__
        long = f"{kind.__module__}.{kind.__name__}"
        self.classes[long] = kind.__module__
        return long


class Thawer:
    """Makes objects of JSON values with `of`. Raises `StoryError`."""

    def __init__(self, classes: Mapping[str, str], stand_ins: Mapping[str, object] | None = None) -> None:
        self._stand_ins = stand_ins or {}
        self._classes = {name: _class(name.rpartition(".")[2], module) for name, module in classes.items()}
        self._known: dict[int, object] = {}
        self._depth = 0
        self._makers: dict[str, Callable[[Json, Callable[[Any], Any]], Any]] = {
            "list": self._list,
            "set": lambda body, known: known(set()).update(map(self.of, body)),
            "frozenset": lambda body, known: known(frozenset(map(self.of, body))),
            "dict": lambda body, known: self._pairs(body, known({})),
            "counter": lambda body, known: self._pairs(body, known(Counter())),
            "float": lambda body, known: known(float(body)),
            "bytes": lambda body, known: known(bytes.fromhex(body)),
            "class": lambda body, known: known(self._classes[body]),
            "stand-in": lambda body, known: known(self._stand_ins[body]),
            "foreign": lambda body, known: known(Foreign(body)),
            "ref": lambda body, known: known(self._known[body]),
            "method": lambda body, known: known(_method(self.of(body[0]), body[1])),
        }

    def of(self, frozen: Json) -> Any:
        """The value that was frozen."""
        if self._depth > DEPTH_MAX:
            raise StoryError(f"values nested deeper than {DEPTH_MAX}")
        self._depth += 1
        try:
            thawed = self._value(frozen)
        except (LookupError, TypeError, ValueError, AttributeError, msgspec.ValidationError) as error:
            raise StoryError(f"no value that was frozen here: {str(frozen)[:LONG]} ({error})") from None
        self._depth -= 1
        return thawed

    def _value(self, frozen: Json) -> Any:
        if isinstance(frozen, list):
            return tuple(map(self.of, frozen))
        if not isinstance(frozen, dict):
            return frozen
        body = dict(frozen)
        number = body.pop("id", None)
        ((name, inside),) = body.items()
        made: list[Any] = []

        def known(value: Any) -> Any:
            """A value exists; those inside it may refer to it."""
            made.append(value)
            if number is not None:
                self._known[number] = value
            return value

        if name in self._makers:
            self._makers[name](inside, known)
        elif name in self._classes:
            self._object(self._classes[name], inside, known)
        else:
            raise StoryError(f"{name} {str(inside)[:LONG]} cannot be made from a file")
        return made[0]

    def _list(self, body: Json, known: Callable[[Any], Any]) -> None:
        known([]).extend(map(self.of, body))

    def _pairs(self, body: Json, into: dict[Any, Any]) -> None:
        for key, value in body:
            into[self.of(key)] = self.of(value)

    def _object(self, kind: type, inside: Json, known: Callable[[Any], Any]) -> None:
        if issubclass(kind, Enum):
            known(kind[inside])
        elif issubclass(kind, msgspec.Struct):
            known(kind(**{name: self.of(value) for name, value in inside.items()}))
        else:
            value = known(object.__new__(kind))
            for name, each in inside.items():
                if not name.isidentifier() or name.startswith("__") or not _is_field(kind, name):
                    raise StoryError(f"{kind.__name__} has no field {name[:LONG]!r}")
                object.__setattr__(value, name, self.of(each))


def _class(name: str, module: str) -> type:
    """A class by name, of the modules that may be named. Importing those has no effects."""
    if not is_ours(module):
        raise StoryError(
            f"class {name[:LONG]} of {module[:LONG]} is not made from a file; only classes of the brains are"
        )
    try:
        kind = vars(import_module(module)).get(name)
    except ImportError:
        kind = None
    if not isinstance(kind, type) or kind.__module__ != module or issubclass(kind, BaseException):
        raise StoryError(f"{module} has no class {name[:LONG]}; was the dump made by another version?")
    return kind


def _method(owner: object, name: str) -> MethodType:
    """A plain method of an object's class."""
    function = next((vars(each)[name] for each in type(owner).__mro__ if name in vars(each)), None)
    if not isinstance(function, FunctionType) or name.startswith("__"):
        raise StoryError(f"{type(owner).__name__} has no method {str(name)[:LONG]!r}")
    return MethodType(function, owner)


def _is_field(kind: type, name: str) -> bool:
    """Whether a name is an attribute of objects: a slot, or nothing of the class's own but a default."""
    own = next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
    return isinstance(own, MemberDescriptorType) or not (callable(own) or hasattr(own, "__get__"))
