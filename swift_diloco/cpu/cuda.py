"""The functions of torch.cuda that Megatron and ms-swift call, answered by the CPU.

There is one "device", it has no streams, and its random generator is the CPU's default generator.
`torch.cuda.is_available` says no, so that libraries which ask first take their CPU path; Megatron does not ask.
Invariant: apply() replaces attributes of torch once per process and is never undone.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_CPU = torch.device("cpu")
_TENSOR_TYPES = ("FloatTensor", "LongTensor", "IntTensor", "HalfTensor", "BFloat16Tensor", "ByteTensor", "BoolTensor")
_MEMORY_QUESTIONS = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
_WITHOUT_EFFECT = ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "_lazy_init")


@dataclass(frozen=True)
class DeviceProperties:
    """What Megatron asks about a GPU; compute capability 8.0 selects its bf16 paths."""

    name: str = "cpu"
    major: int = 8
    minor: int = 0
    total_memory: int = 16 * 2**30  # bytes; only reported
    multi_processor_count: int = 1


class Stream:
    """Everything is done in order on the CPU, so there is nothing to wait for."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def wait_stream(self, other: object) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record_event(self, event: object = None) -> object:
        return event if event is not None else Event()


class Event:
    """An event that has always happened already."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def record(self, stream: object = None) -> None:
        pass

    def wait(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: object) -> float:
        return 0.0


class _Generators:
    """`torch.cuda.default_generators`: whatever the index, the CPU's generator."""

    def __getitem__(self, index: object) -> torch.Generator:
        return torch.default_generator

    def __len__(self) -> int:
        return 1


def _always(answer: Any) -> Callable[..., Any]:
    """A new function that gives `answer`; torch._dynamo wants a different object under each name of torch.cuda."""

    def stand_in(*_: object, **__: object) -> Any:
        return answer

    return stand_in


def _no_context() -> Callable[..., contextlib.AbstractContextManager[None]]:
    def stand_in(*_: object, **__: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    return stand_in


def _new(kind: type) -> Callable[..., Any]:
    def stand_in(*_: object, **__: object) -> Any:
        return kind()

    return stand_in


def _get_rng_state(*_: object, **__: object) -> torch.Tensor:
    return torch.get_rng_state()


def _set_rng_state(state: torch.Tensor, *_: object, **__: object) -> None:
    torch.set_rng_state(state)


def _manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def _manual_seed_all(seed: int) -> None:
    _manual_seed(seed)


def _call_now(callback: Any, *_: object, **__: object) -> None:
    """torch.cuda puts such calls off until CUDA is there; here they are done at once."""
    callback()


def _itself(self: Any, *_: object, **__: object) -> Any:
    return self


def replacements() -> dict[str, Any]:
    """Attribute of torch.cuda → what stands in for it."""
    table: dict[str, Any] = {name: _always(0) for name in _MEMORY_QUESTIONS}
    table |= {name: getattr(torch, name) for name in _TENSOR_TYPES}
    table |= {name: _always(None) for name in _WITHOUT_EFFECT}
    table |= {
        "is_available": _always(False),
        "current_device": _always(_CPU),
        "device_count": _always(1),
        "get_device_capability": _always((DeviceProperties.major, DeviceProperties.minor)),
        "get_device_properties": _always(DeviceProperties()),
        "get_device_name": _always(DeviceProperties.name),
        "_lazy_call": _call_now,
        "device": _no_context(),
        "stream": _no_context(),
        "Stream": Stream,
        "Event": Event,
        "current_stream": _new(Stream),
        "default_stream": _new(Stream),
        "default_generators": _Generators(),
        "get_rng_state": _get_rng_state,
        "set_rng_state": _set_rng_state,
        "manual_seed": _manual_seed,
        "manual_seed_all": _manual_seed_all,
    }
    return table


def apply() -> None:
    """Replace torch.cuda's functions and the methods that move tensors to a GPU."""
    table = replacements()
    for name, stand_in in table.items():
        setattr(torch.cuda, name, stand_in)
    for name in ("get_rng_state", "set_rng_state", "manual_seed", "manual_seed_all"):
        setattr(torch.cuda.random, name, table[name])
    for owner, name in ((torch.Tensor, "cuda"), (torch.nn.Module, "cuda"), (torch.Tensor, "pin_memory")):
        setattr(owner, name, _itself)
