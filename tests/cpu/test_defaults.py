"""Completing a command line for the CPU."""

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.cpu import CpuPlatformError, cpu_arguments
from swift_diloco.cpu.defaults import FORBIDDEN, REQUIRED, cpu_environment

ADDED = [
    "--ddp_backend", "gloo", "--gradient_accumulation_fusion", "false", "--masked_softmax_fusion", "false",
    "--cross_entropy_loss_fusion", "false", "--attention_backend", "unfused", "--dataloader_pin_memory", "false",
]  # fmt: skip


def test_missing_flags_are_appended_in_a_fixed_order() -> None:
    assert cpu_arguments(["--model", "m"]) == ["--model", "m", *ADDED]


def test_flags_that_were_given_are_left_as_they_are() -> None:
    given = ["--ddp_backend=gloo", "--masked-softmax-fusion", "False", "--attention_backend", "local"]
    assert cpu_arguments(given) == [
        *given, "--gradient_accumulation_fusion", "false", "--cross_entropy_loss_fusion", "false",
        "--dataloader_pin_memory", "false",
    ]  # fmt: skip


def test_completing_twice_changes_nothing() -> None:
    once = cpu_arguments(["--lr", "1e-3"])
    assert cpu_arguments(once) == once


def test_the_argument_list_is_not_changed_in_place() -> None:
    argv = ["--lr", "1e-3"]
    cpu_arguments(argv)
    assert argv == ["--lr", "1e-3"]


@pytest.mark.parametrize("flag", [*REQUIRED, *FORBIDDEN], ids=lambda flag: flag.name)
def test_a_value_that_cannot_work_is_named_with_what_to_use(flag: object) -> None:
    name, value = getattr(flag, "name", ""), getattr(flag, "value", "")
    wrong = "2" if value == "1" else "true" if value == "false" else "flash"
    with pytest.raises(CpuPlatformError) as error:
        cpu_arguments([f"--{name}", wrong])
    assert f"--{name} {wrong} cannot work" in str(error.value) and f"use --{name} {value}" in str(error.value)
    assert "\n" not in str(error.value) and isinstance(error.value, UserError)


def test_a_bare_flag_means_true() -> None:
    with pytest.raises(CpuPlatformError, match="--apply_rope_fusion true"):
        cpu_arguments(["--apply_rope_fusion", "--lr", "1e-3"])


def test_the_last_of_a_repeated_flag_counts() -> None:
    cpu_arguments(["--ddp_backend", "nccl", "--ddp_backend", "gloo"])
    with pytest.raises(CpuPlatformError, match="--ddp_backend nccl"):
        cpu_arguments(["--ddp_backend", "gloo", "--ddp_backend", "nccl"])


@pytest.mark.parametrize("name", ["fp8_format", "fp4_format"])
def test_low_precision_formats_are_refused(name: str) -> None:
    with pytest.raises(CpuPlatformError, match=f"--{name} e4m3 cannot work.*bf16"):
        cpu_arguments([f"--{name}", "e4m3"])
    cpu_arguments([f"--{name}", "None"])


def test_the_environment_turns_compilation_off_and_uses_one_thread() -> None:
    environment = cpu_environment()
    assert environment["TORCHDYNAMO_DISABLE"] == "1" and environment["OMP_NUM_THREADS"] == "1"
