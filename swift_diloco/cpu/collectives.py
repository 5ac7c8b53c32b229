"""What Megatron expects of collectives and gloo on CPU tensors does not do.

Averages (gloo only sums): sum, then divide by the size of the group. Split sizes as tensors: Megatron's token
dispatcher makes lists of them while it copies them from the GPU, which it does not do with CPU tensors.
Invariant: other calls go to torch as they came.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def _averaging(original: Callable[..., Any], op_position: int) -> Callable[..., Any]:
    """`original` with AVG done as SUM and a division; `op` is its `op_position`-th argument, the output the first."""

    def collective(*args: Any, **kwargs: Any) -> Any:
        positional = len(args) > op_position
        op = args[op_position] if positional else kwargs.get("op", dist.ReduceOp.SUM)
        if op != dist.ReduceOp.AVG:
            return original(*args, **kwargs)
        if positional:
            args = (*args[:op_position], dist.ReduceOp.SUM, *args[op_position + 1 :])
        else:
            kwargs = {**kwargs, "op": dist.ReduceOp.SUM}
        if kwargs.pop("async_op", False):
            raise ValueError("an asynchronous averaging collective is not supported on the CPU platform")
        result = original(*args, **kwargs)
        output: torch.Tensor = args[0] if args else kwargs["tensor" if "tensor" in kwargs else "output"]
        output.div_(dist.get_world_size(kwargs.get("group")))
        return result

    collective.__name__, collective.__doc__ = original.__name__, original.__doc__
    return collective


def _with_listed_splits(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original` with every integer tensor after the two data tensors turned into a list."""

    def listed(argument: Any) -> Any:
        return argument.tolist() if isinstance(argument, torch.Tensor) else argument

    def collective(output: torch.Tensor, input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        splits = {name: listed(argument) for name, argument in kwargs.items()}
        return original(output, input, *map(listed, args), **splits)

    collective.__name__, collective.__doc__ = original.__name__, original.__doc__
    return collective


def apply() -> None:
    """Put the changed collectives in place, under both names that are imported from."""
    for name, op_position in (("all_reduce", 1), ("reduce_scatter_tensor", 2)):
        _replace(name, _averaging(getattr(dist, name), op_position))
    _replace("all_to_all_single", _with_listed_splits(dist.all_to_all_single))


def _replace(name: str, collective: Callable[..., Any]) -> None:
    setattr(dist, name, collective)
    setattr(distributed_c10d, name, collective)
