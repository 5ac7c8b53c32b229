"""Switches the CPU platform on in a process, at the last moment that is early enough.

A finder at the head of `sys.meta_path` waits for the first import of a package that needs the platform, takes itself
out and installs it. Until then the process is untouched, and the platform's own imports (torch) cost nothing in a
helper process that never needs them.

Invariant: the platform is in place before any line of ms-swift, mcore-bridge or Megatron-Core runs.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from swift_diloco.core.errors import DilocoError, exit_with
from swift_diloco.launch.roles import INTERNAL_CPU

TRIGGERS = frozenset({"swift", "megatron", "mcore_bridge", "transformer_engine"})


class PlatformFinder:
    """Finds nothing; installs the platform when a trigger is imported."""

    def __init__(self, install: Callable[[], None]) -> None:
        self._install = install

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of the import protocol; None hands the search on to the other finders."""
        if name not in TRIGGERS:
            return None
        sys.meta_path.remove(self)
        try:
            self._install()
        except DilocoError as error:
            exit_with(error)
        # A module that the platform had loaded by itself would now be loaded a second time.
        assert name not in sys.modules, f"installing the CPU platform imported {name}"
        return None


def arm() -> None:
    """Have the CPU platform installed in this process, and in the helpers it will spawn, when it is needed."""
    os.environ[INTERNAL_CPU] = "1"
    sys.meta_path.insert(0, PlatformFinder(install_cpu_platform))


def complete_arguments(argv: list[str]) -> list[str]:
    """The command line with the flags that a CPU needs; raises `UserError` for those it cannot do."""
    from swift_diloco.cpu.defaults import cpu_arguments

    return cpu_arguments(argv)


def install_cpu_platform() -> None:
    """Install the platform now; raises `UserError` where it cannot be."""
    from swift_diloco.cpu import install

    install()
