"""What cannot be an island is refused by name, before training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swift_diloco.core.errors import UserError
from swift_diloco.trainers.hf.supported import check_job, check_model


class Seq2SeqTrainer:
    """Named as ms-swift's."""


class GRPOTrainer:
    """Named as ms-swift's."""


def arguments(**changes: Any) -> SimpleNamespace:
    values = {
        "callbacks": ["diloco"], "optim": "adamw_torch_fused", "tuner_type": "full", "tuner_backend": "peft",
        "auto_find_batch_size": False, "deepspeed": None, "fsdp": [], "n_gpu": 1, "parallelism_config": None,
        "use_flash_ckpt": False, "save_strategy": "steps", "load_best_model_at_end": False, "save_total_limit": None,
    }  # fmt: skip
    return SimpleNamespace(**(values | changes))


def test_plain_jobs_are_islands() -> None:
    check_job(Seq2SeqTrainer(), arguments())
    check_job(Seq2SeqTrainer(), arguments(tuner_type="lora", load_best_model_at_end=True, save_total_limit=2))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, "--deepspeed is not supported"),
        ({"fsdp": ["full_shard"]}, "--fsdp is not supported"),
        ({"n_gpu": 4}, r"several devices in one process .* found 4 devices, expected one device each: CUDA_VISIBLE"),
        ({"tuner_type": "adalora"}, "--tuner_type is not supported on islands yet: found adalora, expected full or"),
        ({"callbacks": ["diloco", "lisa"]}, "--callbacks is not supported on islands yet: found lisa"),
        ({"optim": "schedule_free_adamw"}, "--optim is not supported on islands yet: found schedule_free_adamw"),
        ({"save_strategy": "best"}, "--save_strategy is not supported on islands yet: found best"),
        ({"load_best_model_at_end": True, "save_total_limit": 1}, "would delete the checkpoint with the run's final"),
        ({"use_flash_ckpt": True}, "--use_flash_ckpt"),
        ({"auto_find_batch_size": True}, "--auto_find_batch_size"),
    ],
)
def test_each_refusal_names_the_setting(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        check_job(Seq2SeqTrainer(), arguments(**changes))


def test_another_trainer_is_named() -> None:
    with pytest.raises(UserError, match=r"found GRPOTrainer, expected Seq2SeqTrainer: `swift sft`"):
        check_job(GRPOTrainer(), arguments())


def trainer_of(model: torch.nn.Module, **template: Any) -> SimpleNamespace:
    return SimpleNamespace(model=model, template=SimpleNamespace(**({"sequence_parallel_size": 1} | template)))


def test_models_that_cannot_travel_exactly_are_named() -> None:
    check_model(trainer_of(torch.nn.Linear(2, 2)))
    norm = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(UserError, match="a layer with running statistics .* found 1, expected a model whose"):
        check_model(trainer_of(norm))
    with pytest.raises(UserError, match="--sequence_parallel_size"):
        check_model(trainer_of(torch.nn.Linear(2, 2), sequence_parallel_size=2))
    split: Any = torch.nn.Linear(2, 2)
    split.hf_device_map = {"a": 0, "b": 1}
    with pytest.raises(UserError, match="--device_map over several devices .* found 0, 1, expected one device"):
        check_model(trainer_of(split))
    pissa: Any = torch.nn.Linear(2, 2)
    pissa.peft_config = {"default": SimpleNamespace(init_lora_weights="pissa")}
    with pytest.raises(UserError, match=r"--init_weights .* found pissa, expected true or gaussian"):
        check_model(trainer_of(pissa))
