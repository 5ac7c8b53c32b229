"""Runs a function on a module right after it was imported for the first time, wherever the import comes from.

It knows only the import system. Invariant: the module's own loader loads it, and it is complete when the function
sees it.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Patch = Callable[[ModuleType], None]


class _ThenLoader(Loader):
    """The module's own loader, and then the action."""

    def __init__(self, loader: Loader, action: Patch) -> None:
        self._loader, self._action = loader, action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._action(module)


class AfterImportFinder(MetaPathFinder):
    """Finds one module, by asking the finders that come after this one."""

    def __init__(self, name: str, action: Patch) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _ThenLoader(spec.loader, self.action)
                return spec
        return None


def after_import(name: str, action: Patch) -> None:
    """Call `action(module)` when the module `name` is imported; it must not have been imported yet."""
    assert name not in sys.modules, f"{name} is imported already"
    sys.meta_path.insert(0, AfterImportFinder(name, action))
