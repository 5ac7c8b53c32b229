"""The FP32 values that Megatron's optimizers train, and the way back from them to the parameters that the model
computes with.

Under the DistributedOptimizer a rank holds a flat range of each parameter (possibly nothing), under the others the
whole local parameter. A master of an FP32 parameter is the parameter's own memory; of a low-precision one it is a copy,
and the parameter is that copy rounded. Knows nothing of global tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params, FP32Optimizer

from swift_diloco.core.errors import UserError


@dataclass(frozen=True, slots=True, eq=False)
class Master:
    """FP32 values of the flat range of `parameter` that begins at `begin`; they share memory with the optimizer."""

    parameter: torch.nn.Parameter
    begin: int
    values: torch.Tensor
    sharded_over_dp: bool
    """Whether each data parallel rank holds a range of its own (else all of them hold the same)."""

    @property
    def end(self) -> int:
        return self.begin + self.values.numel()

    def copy_to_parameter(self) -> None:
        """Round the master into the parameter's own memory. Other data parallel ranks do not see it yet."""
        local = self.parameter.detach().view(-1)[self.begin : self.end]
        if local.data_ptr() != self.values.data_ptr():
            local.copy_(self.values)


def masters_of(optimizer: MegatronOptimizer) -> list[Master]:
    """Every master this rank holds, in the order of the optimizers; `UserError` for an unknown optimizer."""
    chained = optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]
    return [master for one in chained for master in _masters(one)]


def _masters(optimizer: MegatronOptimizer) -> Iterator[Master]:
    if getattr(optimizer, "is_stub_optimizer", False):
        return
    if isinstance(optimizer, DistributedOptimizer):
        yield from _distributed(optimizer)
    elif isinstance(optimizer, Float16OptimizerWithFloat16Params):
        for parameter, values in _pairs(optimizer.float16_groups, optimizer.fp32_from_float16_groups):
            yield _master(parameter, 0, values, sharded=False)
        for parameter, values in _pairs(optimizer.fp32_from_fp32_groups, optimizer.fp32_from_fp32_groups):
            yield _master(parameter, 0, values, sharded=False)
    elif isinstance(optimizer, FP32Optimizer):
        for parameter in optimizer.get_parameters():
            yield _master(parameter, 0, parameter, sharded=False)
    else:
        raise UserError(
            f"optimizer {type(optimizer).__name__} is not supported on islands yet; expected Megatron's distributed "
            "optimizer (`--use_distributed_optimizer true`) or its plain mixed-precision or FP32 one"
        )


def _distributed(optimizer: DistributedOptimizer) -> Iterator[Master]:
    low = _pairs(optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups)
    full = _pairs(optimizer.model_fp32_groups, optimizer.shard_fp32_groups)
    for parameter, values in [*low, *full]:
        begin = optimizer._get_model_param_range_map(parameter)["param"].start
        yield _master(parameter, begin, values, sharded=True)


def _pairs(parameters: Sequence[Any], values: Sequence[Any]) -> list[tuple[torch.nn.Parameter, torch.Tensor | None]]:
    return [
        pair
        for group, value_group in zip(parameters, values, strict=True)
        for pair in zip(group, value_group, strict=True)
    ]


def _master(parameter: torch.nn.Parameter, begin: int, values: torch.Tensor | None, *, sharded: bool) -> Master:
    if values is None or values.dtype != torch.float32:
        found = "none" if values is None else str(values.dtype)
        raise UserError(
            f"a parameter has no FP32 master (found {found}); islands need FP32 masters of all trained parameters"
        )
    return Master(parameter, begin, values.detach().view(-1), sharded)


@torch.no_grad()
def publish(masters: Sequence[Master], touched: Set[torch.nn.Parameter], chunks: Sequence[Any]) -> None:
    """Bring the parameters in `touched` up to their masters on all data parallel ranks. Collective over data
    parallel ranks.

    With `overlap_param_gather` Megatron gathers lazily, before the next forward pass, from these very shards; the
    gather here makes the values visible to an evaluation or an export that comes before.
    """
    for master in masters:
        if master.parameter in touched:
            master.copy_to_parameter()
    for chunk in chunks:
        if not chunk.ddp_config.use_distributed_optimizer:
            continue
        for bucket_group in [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]:
            if touched.isdisjoint(bucket_group.params):
                continue
            if bucket_group.param_gather_handle is not None:
                # This call only waits for the gather under way, which carries the old values.
                bucket_group.start_param_sync(force_sync=True)
            bucket_group.start_param_sync(force_sync=True)
