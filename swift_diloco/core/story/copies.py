"""A copy of a brain's state in memory: what can change is copied, what cannot is shared.

`copy.deepcopy` would do the same a hundred times slower: it copies names and messages too, which are most of a state.
Here a list or a dictionary of such values is copied in one go.

Invariants: the copy shares nothing that can change with the original; what was one object is one object in the copy.
Objects of classes that are not of the brains (`is_ours`) are shared as they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from copy import copy
from enum import Enum
from functools import cache
from types import MethodType
from typing import Any

OURS = re.compile(
    r"(swift_diloco\.core\.(formats|layout|settings)|swift_diloco\.island\.brain|syncer\.brain)(\.[a-z_]+)+"
    r"|swift_diloco\.island\.(events|remembered)|syncer\.events"
)
"""Modules of the classes that states, events and effects are made of: pure ones, all of them."""

ATOMS: frozenset[type] = frozenset({int, float, str, bool, bytes, type(None)})

COLLECTIONS = frozenset({list, set, dict, Counter})

BULK = 16
"""Elements of a collection that is copied in one go, in the time of one value that is looked at."""


@cache
def is_ours(module: str) -> bool:
    """Whether the classes of a module are a brain's own."""
    return OURS.fullmatch(module) is not None


@cache
def is_frozen(kind: type) -> bool:
    """Whether objects of a class never change: Enums, frozen Structs and frozen dataclasses."""
    config = getattr(kind, "__struct_config__", None) or getattr(kind, "__dataclass_params__", None)
    return issubclass(kind, Enum) or (config is not None and bool(config.frozen))


@cache
def slots_of(kind: type) -> tuple[str, ...]:
    """The names of the slots of a class and of those it derives from."""
    found: list[str] = []
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


class Copier:
    """Makes one copy with `of`. `size` says what it cost: the values looked at one by one."""

    def __init__(self, shared: set[type]) -> None:
        self.size = 0
        self.foreign: list[object] = []
        """The first of each class that is not of the brains."""
        self._shared = shared
        """Classes of values that need no copy; found out once, so hand the same set to the next copier."""
        self._done: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """A copy of a value."""
        kind: type = type(value)
        if kind in self._shared:
            return value
        if kind is tuple:
            return value if self._shared.issuperset(map(type, value)) else self._tuple(value)
        done = self._done.get(id(value))
        if done is not None:
            return done
        self.size += 1 + (len(value) // BULK if kind in COLLECTIONS else 0)
        if kind is list:
            return self._list(value)
        if kind is dict or kind is Counter:
            return self._mapping(value, kind)
        if kind is set:
            return self._set(value)
        if kind is MethodType:
            return MethodType(value.__func__, self.of(value.__self__))
        if is_ours(kind.__module__) and not is_frozen(kind):
            return self._object(value, kind)
        if not is_ours(kind.__module__):
            self.foreign.append(value)
        self._shared.add(kind)
        return value

    def _each(self, values: Collection[Any]) -> Iterable[Any]:
        """Copies of values, in order."""
        shared, of = self._shared, self.of
        if shared.issuperset(map(type, values)):
            return values
        self.size += len(values)
        return [value if type(value) in shared else of(value) for value in values]

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self._each(value))

    def _list(self, value: list[Any]) -> list[Any]:
        copied: list[Any] = []
        self._done[id(value)] = copied
        copied += self._each(value)
        return copied

    def _set(self, value: set[Any]) -> set[Any]:
        copied: set[Any] = set()
        self._done[id(value)] = copied
        copied.update(self._each(value))
        return copied

    def _mapping(self, value: dict[Any, Any], kind: type) -> Any:
        copied = self._done[id(value)] = kind()
        if self._shared.issuperset(map(type, value)) and self._shared.issuperset(map(type, value.values())):
            dict.update(copied, value)
        else:
            dict.update(copied, zip(self._each(value.keys()), self._each(value.values()), strict=True))
        return copied

    def _object(self, value: Any, kind: type) -> Any:
        struct = hasattr(kind, "__struct_config__")  # msgspec makes and fills its own
        copied: Any = copy(value) if struct else object.__new__(kind)
        self._done[id(value)] = copied
        names = tuple(name for name in slots_of(kind) if hasattr(value, name))
        for name, each in zip(names, self._each([getattr(value, name) for name in names]), strict=True):
            (setattr if struct else object.__setattr__)(copied, name, each)
        attributes = getattr(value, "__dict__", None)
        if attributes:
            copied.__dict__.update(zip(attributes, self._each(attributes.values()), strict=True))
        return copied
