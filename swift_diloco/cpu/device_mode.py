"""Turns the device "cuda" into the CPU in every torch call of this thread, and lets CPU tensors pass for CUDA ones.

Megatron writes `device="cuda"` in many places and compares `tensor.type()` with "torch.cuda.FloatTensor". A
TorchFunctionMode is torch's own way to see all calls; the fast path (no device named) costs one dictionary look-up.
It works per thread: threads started later see plain torch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def is_cuda(device: object) -> bool:
    """Whether `device` names a GPU, as a string or a torch.device."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and device.startswith("cuda")


def to_cpu(argument: Any) -> Any:
    """The CPU instead of a GPU; anything else unchanged."""
    return "cpu" if is_cuda(argument) else argument


class CudaIsCpu(TorchFunctionMode):
    """The mode; entered once by enter() and never left."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if kwargs:
            if is_cuda(kwargs.get("device")):
                kwargs = {**kwargs, "device": "cpu"}
        else:
            kwargs = {}
        if func is torch.Tensor.to:
            args = tuple(to_cpu(argument) for argument in args)
        elif func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **kwargs)


def _redirect_module_to() -> None:
    """nn.Module.to reads the device before any tensor does, in C++; translate it on the way in."""
    original = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        return original(self, *map(to_cpu, args), **{name: to_cpu(value) for name, value in kwargs.items()})

    setattr(torch.nn.Module, "to", to)  # noqa: B010 - a method is replaced on purpose


def enter() -> CudaIsCpu:
    """Switch the mode on for the rest of the process (this thread)."""
    _redirect_module_to()
    mode = CudaIsCpu()
    mode.__enter__()  # type: ignore[no-untyped-call]
    return mode
