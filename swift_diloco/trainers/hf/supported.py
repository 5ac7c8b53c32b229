"""Which of ms-swift's transformers jobs can be islands by now. Everything else is refused by name before training.

Each line is a promise not made yet: what cannot be split, counted or installed exactly must not train. `check_job`
needs the trainer's class and arguments only, so it runs while the trainer is built; `check_model` needs the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from swift_diloco.core.errors import UserError

TRAINER = "Seq2SeqTrainer"
TUNERS = ("full", "lora")
PLAIN_INITS = (True, False, "gaussian", "orthogonal")
"""LoRA initialisations that leave the frozen model as it is."""

REFUSED_CALLBACKS = ("lisa", "adalora", "deepspeed_elastic")
REFUSED_OPTIMIZERS = ("schedule_free", "lomo", "adalomo")
"""Optimizers that keep other values in the model than those trained, or update it outside the optimizer's step."""

Demand = tuple[str, object, bool, str]
"""What is checked, what was found, whether that is refused, and what is expected."""


def check_job(trainer: Any, args: Any) -> None:
    """Raise `UserError` naming the first feature of the job that islands do not support yet."""
    _refuse([*_kind(trainer, args), *_parallelism(args), *_saving(args)])


def check_model(trainer: Any) -> None:
    """Raise `UserError` naming the first property of the prepared model that islands do not support yet."""
    _refuse(_model(trainer))


def _refuse(checks: list[Demand]) -> None:
    for feature, found, refused, expected in checks:
        if refused:
            raise UserError(f"{feature} is not supported on islands yet: found {found}, expected {expected}")


def _kind(trainer: Any, args: Any) -> list[Demand]:
    kind = type(trainer).__name__
    callbacks = [name for name in args.callbacks if name in REFUSED_CALLBACKS]
    optimizer = str(getattr(args.optim, "value", args.optim))
    return [
        (
            "trainer class",
            kind,
            kind != TRAINER,
            f"{TRAINER}: `swift sft` or `swift pt` with --task_type causal_lm, no --rlhf_type",
        ),
        ("--tuner_type", args.tuner_type, args.tuner_type not in TUNERS, "full or lora"),
        ("--tuner_backend", args.tuner_backend, args.tuner_backend not in (None, "peft"), "peft"),
        ("--callbacks", " ".join(callbacks), bool(callbacks), "a job without it (what is trained must stay the same)"),
        ("--optim", optimizer, optimizer.startswith(REFUSED_OPTIMIZERS), "adamw_torch or another plain optimizer"),
        ("--auto_find_batch_size", True, bool(args.auto_find_batch_size), "false, and --per_device_train_batch_size"),
    ]


def _parallelism(args: Any) -> list[Demand]:
    ranks = "ranks started with NPROC_PER_NODE or torchrun that each hold the whole model (plain DDP)"
    return [
        (
            "--deepspeed",
            "a configuration" if args.deepspeed else None,
            bool(args.deepspeed),
            f"no --deepspeed, and {ranks}",
        ),
        ("--fsdp", args.fsdp, bool(args.fsdp), f"no --fsdp, and {ranks}"),
        (
            "several devices in one process (device_map, DataParallel)",
            f"{args.n_gpu} devices",
            args.n_gpu > 1,
            f"one device each: CUDA_VISIBLE_DEVICES with one device, or {ranks}",
        ),
        (
            "--parallelism_config",
            "a configuration",
            getattr(args, "parallelism_config", None) is not None,
            f"none, and {ranks}",
        ),
    ]


def _saving(args: Any) -> list[Demand]:
    save = str(getattr(args.save_strategy, "value", args.save_strategy))
    loses_last = bool(args.load_best_model_at_end) and args.save_total_limit == 1
    return [
        (
            "--use_flash_ckpt",
            True,
            bool(args.use_flash_ckpt),
            "false: the last save must be on disk when training ends",
        ),
        ("--save_strategy", save, save == "best", "steps or epoch: the run's final values must be saved in any case"),
        (
            "--load_best_model_at_end with --save_total_limit 1",
            "both",
            loses_last,
            "--save_total_limit 2 or more: the trainer would delete the checkpoint with the run's final values",
        ),
    ]


def _model(trainer: Any) -> list[Demand]:
    model = trainer.model
    devices = sorted({str(device) for device in (getattr(model, "hf_device_map", None) or {}).values()})
    parallel = getattr(trainer.template, "sequence_parallel_size", 1)
    init = next((init for init in _lora_inits(model) if init not in PLAIN_INITS), True)
    norm = next(_changing_buffers(model), "")
    return [
        ("--device_map over several devices", ", ".join(devices), len(devices) > 1, "one device"),
        ("--sequence_parallel_size", parallel, parallel > 1, "1"),
        ("--init_weights", init, init not in PLAIN_INITS, "true or gaussian (others change the frozen model)"),
        ("a layer with running statistics", norm, bool(norm), "a model whose training changes parameters alone"),
    ]


def _lora_inits(model: Any) -> Iterator[object]:
    for config in (getattr(model, "peft_config", None) or {}).values():
        yield getattr(config, "init_lora_weights", True)


def _changing_buffers(model: torch.nn.Module) -> Iterator[str]:
    """Layers whose statistics training changes, beside the optimizer."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._NormBase) and module.track_running_stats:
            trained = any(parameter.requires_grad for parameter in module.parameters())
            if trained or module.training:
                yield name
