"""Megatron on a CPU: the real ms-swift Megatron trainer without CUDA, Transformer Engine, Triton or NCCL.

install() makes `import swift.megatron` and everything behind it (mcore-bridge, DistributedOptimizer, distributed
checkpoints) run on gloo. It is for trying out and for tests: the numbers agree with the transformers trainer to bf16
accuracy, speed does not matter. cpu_arguments() completes a command line for it. This package knows what Megatron
needs, and nothing of DiLoCo.

Invariants: importing it changes nothing and imports no torch; install() changes a process once, however often called.
"""

import os
import sys

from swift_diloco.cpu.defaults import cpu_arguments
from swift_diloco.cpu.environment import set_defaults
from swift_diloco.cpu.errors import CpuPlatformError, UnsupportedOnCpuError

__all__ = ["CpuPlatformError", "UnsupportedOnCpuError", "cpu_arguments", "install", "is_installed"]

# Packages that look at torch.cuda and Transformer Engine while they are imported.
_MUST_COME_LATER = ("transformer_engine", "megatron.core", "mcore_bridge", "swift.megatron")

_installed = False


def is_installed() -> bool:
    """Whether install() has been done in this process."""
    return _installed


def install() -> None:
    """Make this process, and those it starts, run Megatron on the CPU. Call it before ms-swift is imported."""
    global _installed
    if _installed:
        return
    _refuse_late_call()
    set_defaults(os.environ)
    import torch

    from swift_diloco.cpu import collectives, cuda, device_mode, parallel_marks, snapshots, stand_ins, triton_stand_in
    from swift_diloco.cpu.after_import import after_import

    _refuse_real_transformer_engine(stand_ins.is_installed("transformer_engine"), torch.cuda.is_available())
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # torch may have been imported before the default was set
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].config.disable = True
    cuda.apply()
    collectives.apply()
    if "triton" in stand_ins.register().packages:
        triton_stand_in.hide_from_torch()
    after_import(parallel_marks.MODULE, parallel_marks.mark_weights)
    after_import(snapshots.MODULE, snapshots.copy_before_writing)
    device_mode.enter()
    _installed = True


def _refuse_late_call() -> None:
    early = [name for name in _MUST_COME_LATER if name in sys.modules]
    if early:
        raise CpuPlatformError(
            f"the CPU platform must be installed before {early[0]} is imported, but it is imported already; "
            "call swift_diloco.cpu.install() first, or start the command with --diloco_platform cpu"
        )


def _refuse_real_transformer_engine(has_transformer_engine: bool, has_cuda: bool) -> None:
    if has_transformer_engine and has_cuda:
        raise CpuPlatformError(
            "the CPU platform was asked for, but this machine has CUDA and a real Transformer Engine; "
            "leave out --diloco_platform cpu (unset YETO_DILOCO_PLATFORM) to train on the GPU, "
            "or hide the GPU with CUDA_VISIBLE_DEVICES=''"
        )
