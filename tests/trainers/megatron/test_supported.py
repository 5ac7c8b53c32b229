"""What is not done yet is refused by name; what is done is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.trainers.megatron.supported import check_supported


class MegatronTrainer:
    """As much of ms-swift's trainer of that name as the check looks at."""

    def __init__(self, **changes: Any) -> None:
        supported = {
            "rlhf_type": None,
            "task_type": "causal_lm",
            "tuner_type": "full",
            "context_parallel_size": 1,
            "expert_model_parallel_size": 1,
            "mtp_num_layers": None,
            "fp8_format": None,
            "fp4_format": None,
            "optimizer_cpu_offload": False,
            "use_precision_aware_optimizer": False,
            "use_megatron_fsdp": False,
        }
        self.args = SimpleNamespace(**(supported | {k: v for k, v in changes.items() if k in supported}))
        self.config = SimpleNamespace(num_moe_experts=changes.get("num_moe_experts"))
        self.unwrapped_models = [object()] * changes.get("chunks", 1)
        instances = SimpleNamespace(num_distributed_optimizer_instances=changes.get("instances", 1))
        self.wrapped_models = [SimpleNamespace(ddp_config=instances)]


class MegatronRewardTrainer(MegatronTrainer):
    """Another trainer, whose loss is not counted in tokens."""


def test_full_training_of_a_dense_model_is_supported() -> None:
    check_supported(MegatronTrainer())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rlhf_type": "dpo"}, "--rlhf_type is not supported on islands yet: found dpo"),
        ({"task_type": "seq_cls"}, "--task_type .* found seq_cls, expected causal_lm"),
        ({"tuner_type": "lora"}, "--tuner_type .* found lora, expected full"),
        ({"chunks": 2}, "virtual pipeline parallelism"),
        ({"context_parallel_size": 2}, "--context_parallel_size"),
        ({"num_moe_experts": 8}, "mixture of experts"),
        ({"expert_model_parallel_size": 2}, "--expert_model_parallel_size"),
        ({"mtp_num_layers": 1}, "--mtp_num_layers"),
        ({"fp8_format": "hybrid"}, "--fp8_format"),
        ({"fp4_format": "e2m1"}, "--fp4_format"),
        ({"optimizer_cpu_offload": True}, "--optimizer_cpu_offload"),
        ({"use_precision_aware_optimizer": True}, "--use_precision_aware_optimizer"),
        ({"use_megatron_fsdp": True}, "--use_megatron_fsdp"),
        ({"instances": 2}, "several distributed optimizer instances .* found 2, expected 1"),
    ],
)
def test_feature_not_done_yet_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_supported(MegatronTrainer(**changes))


def test_trainer_with_another_loss_is_refused_by_its_class() -> None:
    with pytest.raises(UserError, match="trainer class .* found MegatronRewardTrainer, expected MegatronTrainer"):
        check_supported(MegatronRewardTrainer())
