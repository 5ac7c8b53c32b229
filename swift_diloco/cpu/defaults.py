"""Completes a `megatron sft` command line with the flags that a CPU needs, and refuses those that it cannot do.

It knows flag names of ms-swift and what a CPU lacks; it does not know what the other flags mean.
Invariant: a flag that the user gave is never changed; a value that cannot work is an error that names it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from swift_diloco.cpu.environment import DEFAULTS
from swift_diloco.cpu.errors import CpuPlatformError


@dataclass(frozen=True)
class CpuFlag:
    """A flag whose value matters on a CPU: `value` is appended when it is missing, `allowed` is what may be given."""

    name: str
    value: str
    allowed: tuple[str, ...]
    why: str


_FALSE = ("false", "0", "no", "f", "n")

REQUIRED = (
    CpuFlag("ddp_backend", "gloo", ("gloo",), "NCCL needs GPUs"),
    CpuFlag("gradient_accumulation_fusion", "false", _FALSE, "it is a CUDA kernel"),
    CpuFlag("masked_softmax_fusion", "false", _FALSE, "it is a CUDA kernel"),
    CpuFlag("cross_entropy_loss_fusion", "false", _FALSE, "it is a fused kernel"),
    CpuFlag("attention_backend", "unfused", ("unfused", "local"), "flash and fused attention are CUDA kernels"),
    CpuFlag("dataloader_pin_memory", "false", _FALSE, "there is no device to copy pinned memory to"),
)

# ms-swift 4.6.0 trains float32 too in fp16, and its NaN check takes the overflow that lowers the first loss scale
# (2**32) for an error, on GPUs as well.
_NO_FP16 = "ms-swift would train in fp16 and stop at the first overflow of the loss scale"

# Flags whose default works; only some values do not. `value` is what to use instead.
FORBIDDEN = (
    CpuFlag("torch_dtype", "bfloat16", ("bfloat16", "none"), _NO_FP16),
    CpuFlag("fp16", "false", (*_FALSE, "none"), _NO_FP16),
    CpuFlag("apply_rope_fusion", "false", _FALSE, "it is a CUDA kernel"),
    CpuFlag("context_parallel_size", "1", ("1",), "context parallelism lives in Transformer Engine's kernels"),
    CpuFlag("te_rng_tracker", "false", _FALSE, "it is made for CUDA graphs"),
    CpuFlag("tp_comm_overlap", "false", _FALSE, "it needs CUDA streams"),
    CpuFlag("use_precision_aware_optimizer", "false", _FALSE, "it is a CUDA kernel"),
    CpuFlag("optimizer_cpu_offload", "false", _FALSE, "the optimizer is on the CPU already"),
    CpuFlag("optimizer_cuda_graph", "false", _FALSE, "there are no CUDA graphs"),
    CpuFlag("use_megatron_fsdp", "false", _FALSE, "Megatron-FSDP needs CUDA streams"),
    CpuFlag("moe_permute_fusion", "false", _FALSE, "it is a CUDA kernel"),
    CpuFlag("moe_enable_deepep", "false", _FALSE, "DeepEP is a CUDA library"),
    CpuFlag("use_fused_mhc", "false", _FALSE, "it is a CUDA kernel"),
    CpuFlag("apply_dsa_kernel_fusion", "false", _FALSE, "it is a CUDA kernel"),
    CpuFlag("fp8_param_gather", "false", _FALSE, "a CPU has no FP8"),
    CpuFlag("fp4_param_gather", "false", _FALSE, "a CPU has no FP4"),
)

# Flags that may not be given at all, and what to do instead.
REFUSED = {"fp8_format": "FP8", "fp4_format": "FP4"}


def cpu_arguments(argv: list[str]) -> list[str]:
    """`argv` (without the program name) and the flags a CPU needs; raises CpuPlatformError for what it cannot do."""
    given = dict(_flags(argv))
    for name, feature in REFUSED.items():
        if given.get(name, "none").lower() not in ("none", "null"):
            raise CpuPlatformError(f"--{name} {given[name]} cannot work on the CPU platform: {feature} needs a GPU; "
                                   f"leave out --{name} and train in bf16")  # fmt: skip
    for flag in (*REQUIRED, *FORBIDDEN):
        if flag.name in given and given[flag.name].lower() not in flag.allowed:
            raise CpuPlatformError(f"--{flag.name} {given[flag.name]} cannot work on the CPU platform: {flag.why}; "
                                   f"use --{flag.name} {flag.value}, or leave it out")  # fmt: skip
    missing = [flag for flag in REQUIRED if flag.name not in given]
    return [*argv, *(word for flag in missing for word in (f"--{flag.name}", flag.value))]


def cpu_environment() -> dict[str, str]:
    """Variables to set, where the user has not, before torch is imported."""
    return dict(DEFAULTS)


def _flags(argv: list[str]) -> Iterator[tuple[str, str]]:
    """(name, value) of every flag; `--name value`, `--name=value` and a bare `--name`, which means true."""
    for index, word in enumerate(argv):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        if not equals:
            following = argv[index + 1] if index + 1 < len(argv) else "--"
            value = "true" if following.startswith("--") else following
        yield name.replace("-", "_"), value
