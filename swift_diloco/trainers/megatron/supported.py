"""Which of ms-swift's Megatron jobs can be islands by now. Everything else is refused by name before anything starts.

Each line is a promise not made yet: what cannot be mapped to the global layout, counted or installed exactly
must not train.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from swift_diloco.core.errors import UserError


def check_supported(trainer: Any) -> None:
    """Raise `UserError` naming the first feature of the job that islands do not support yet."""
    for feature, found, expected in _unsupported(trainer):
        raise UserError(f"{feature} is not supported on islands yet: found {found}, expected {expected}")


def _unsupported(trainer: Any) -> Iterator[tuple[str, object, str]]:
    args, config = trainer.args, trainer.config
    checks: list[tuple[str, object, bool, str]] = [
        ("--rlhf_type", args.rlhf_type, args.rlhf_type is not None, "`megatron sft` or `megatron pt`"),
        ("--task_type", args.task_type, args.task_type != "causal_lm", "causal_lm"),
        ("--tuner_type", args.tuner_type, args.tuner_type != "full", "full"),
        ("trainer class", type(trainer).__name__, type(trainer).__name__ != "MegatronTrainer", "MegatronTrainer"),
        (
            "virtual pipeline parallelism",
            len(trainer.unwrapped_models),
            len(trainer.unwrapped_models) > 1,
            "one model chunk per rank",
        ),
        ("--context_parallel_size", args.context_parallel_size, args.context_parallel_size > 1, "1"),
        ("mixture of experts", config.num_moe_experts, bool(config.num_moe_experts), "a dense model"),
        ("--expert_model_parallel_size", args.expert_model_parallel_size, args.expert_model_parallel_size > 1, "1"),
        ("--mtp_num_layers", args.mtp_num_layers, bool(args.mtp_num_layers), "none"),
        ("--fp8_format", args.fp8_format, args.fp8_format is not None, "none"),
        ("--fp4_format", args.fp4_format, args.fp4_format is not None, "none"),
        ("--optimizer_cpu_offload", True, bool(args.optimizer_cpu_offload), "false"),
        ("--use_precision_aware_optimizer", True, bool(args.use_precision_aware_optimizer), "false"),
        ("--use_megatron_fsdp", True, bool(args.use_megatron_fsdp), "false"),
        ("several distributed optimizer instances", *_instances(trainer), "1"),
    ]
    for feature, found, refused, expected in checks:
        if refused:
            yield feature, found, expected


def _instances(trainer: Any) -> tuple[int, bool]:
    instances = int(trainer.wrapped_models[0].ddp_config.num_distributed_optimizer_instances)
    return instances, instances > 1
