"""A stand-in for the `triton` package: importing kernels works, launching one is an error that names it.

Megatron-Core and mcore-bridge import triton at module level and decorate kernels with it; none of these runs for dense
models on a CPU. Every name that is asked for exists and gives a placeholder.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from swift_diloco.cpu.errors import unsupported

VERSION = "3.0.0"


def hide_from_torch() -> None:
    """Have torch's compiler, which is off but imported, believe what is true: that there is no Triton."""
    import torch.utils._triton

    setattr(torch.utils._triton, "has_triton_package", functools.cache(lambda: False))  # noqa: B010


class Placeholder:
    """Something of triton that can be named, subscripted by types and used as a base, but not run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "Placeholder":
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self._name}.{name}")

    def __getitem__(self, grid: object) -> Callable[..., Any]:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        raise unsupported(f"the Triton kernel {self._name}")

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)


def _jit(function: Any = None, **_: object) -> Any:
    """@triton.jit and @triton.jit(...): the kernel becomes a placeholder of its name."""
    if function is None:
        return _jit
    return Placeholder(getattr(function, "__name__", getattr(function, "_name", "?")))


def _decorator(*_: object, **__: object) -> Callable[[Any], Any]:
    """@triton.autotune(...), @triton.heuristics(...): leave the kernel as it is."""
    return lambda kernel: kernel


def _cdiv(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _next_power_of_2(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def names() -> dict[str, Any]:
    """What `import triton` shows besides placeholders."""
    return {
        "__version__": VERSION,
        "jit": _jit,
        "autotune": _decorator,
        "heuristics": _decorator,
        "Config": lambda *args, **kwargs: (args, kwargs),
        "cdiv": _cdiv,
        "next_power_of_2": _next_power_of_2,
    }


def placeholders(module: ModuleType) -> Callable[[str], Placeholder]:
    """A module-level `__getattr__` for `module`."""

    def __getattr__(name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{module.__name__}.{name}")

    return __getattr__
