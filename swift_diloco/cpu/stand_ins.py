"""Shows the stand-ins to `import` under the names `transformer_engine` and, where it is not installed, `triton`.

The table below is the whole surface: a name that is not in it does not exist, and Megatron then takes its path for a
Transformer Engine without that part. The modules are made when they are first imported; nothing is put on sys.path.
"""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# The release whose interface is stood in for. Megatron chooses code paths by it: 2.6 is the last one before fused MoE
# routers are expected, and has everything else that Megatron-Core 0.16 wants for dense models.
TRANSFORMER_ENGINE_VERSION = "2.6.0"

Names = dict[str, Any]


def _top() -> Names:
    return {"__version__": TRANSFORMER_ENGINE_VERSION}


def _pytorch() -> Names:
    from swift_diloco.cpu.te import attention, fp8, grouped, linear, norms

    return {
        "Linear": linear.Linear,
        "LayerNormLinear": linear.LayerNormLinear,
        "GroupedLinear": grouped.GroupedLinear,
        "RMSNorm": norms.RMSNorm,
        "LayerNorm": norms.LayerNorm,
        "DotProductAttention": attention.DotProductAttention,
        "fp8_autocast": fp8.fp8_autocast,
        "fp8_model_init": fp8.fp8_model_init,
    }


def _attention() -> Names:
    from swift_diloco.cpu.te import unsupported

    return {
        "apply_rotary_pos_emb": unsupported.apply_rotary_pos_emb,
        "_SplitAlongDim": unsupported.SplitAlongDim,
    }


def _rope() -> Names:
    from swift_diloco.cpu.te import unsupported

    return {"apply_rotary_pos_emb": unsupported.apply_rotary_pos_emb}


def _distributed() -> Names:
    from swift_diloco.cpu.te import rng

    return {
        "CudaRNGStatesTracker": rng.CudaRNGStatesTracker,
        "checkpoint": rng.checkpoint,
        "activation_recompute_forward": rng.activation_recompute_forward,
        "is_fp8_activation_recompute_enabled": rng.never,
        "in_fp8_activation_recompute_phase": rng.never,
    }


def _fp8() -> Names:
    from swift_diloco.cpu.te import fp8

    names = ("FP8GlobalStateManager", "fp8_autocast", "fp8_model_init")
    return {name: getattr(fp8, name) for name in names}


def _recipes() -> Names:
    from swift_diloco.cpu.te import fp8

    names = ("Format", "Recipe", "DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling",
             "NVFP4BlockScaling")  # fmt: skip
    return {name: getattr(fp8, name) for name in names}


def _float8() -> Names:
    from swift_diloco.cpu.te import fp8

    return {"Float8Tensor": fp8.Float8Tensor}


def _tensor() -> Names:
    from swift_diloco.cpu.te import fp8

    return {"QuantizedTensor": fp8.QuantizedTensor}


def _optimizers() -> Names:
    from swift_diloco.cpu.te import optimizers

    names = ("FusedAdam", "FusedSGD", "multi_tensor_applier", "multi_tensor_scale", "multi_tensor_l2norm")
    return {name: getattr(optimizers, name) for name in names}


def _utils() -> Names:
    from swift_diloco.cpu.te import unsupported

    return {"SplitAlongDim": unsupported.SplitAlongDim}


def _ops() -> Names:
    from swift_diloco.cpu.te.unsupported import unsupported_class

    names = ("Sequential", "FusibleOperation", "BasicLinear", "Bias", "LayerNorm", "RMSNorm", "GELU", "GEGLU", "SiLU",
             "SwiGLU", "ReLU", "ReGLU", "ReduceScatter", "AllReduce")  # fmt: skip
    return {name: unsupported_class(f"Transformer Engine's operation fuser: {name}") for name in names}


def _triton() -> Names:
    from swift_diloco.cpu import triton_stand_in

    return triton_stand_in.names()


def _nothing() -> Names:
    return {}


# Module name → what is in it. Submodules that are listed are also imported with their parent, as the real package does.
TABLE: dict[str, Callable[[], Names]] = {
    "transformer_engine": _top,
    "transformer_engine.common": _nothing,
    "transformer_engine.common.recipe": _recipes,
    "transformer_engine.pytorch": _pytorch,
    "transformer_engine.pytorch.attention": _attention,
    "transformer_engine.pytorch.attention.rope": _rope,
    "transformer_engine.pytorch.distributed": _distributed,
    "transformer_engine.pytorch.float8_tensor": _float8,
    "transformer_engine.pytorch.fp8": _fp8,
    "transformer_engine.pytorch.ops": _ops,
    "transformer_engine.pytorch.optimizers": _optimizers,
    "transformer_engine.pytorch.tensor": _tensor,
    "transformer_engine.pytorch.utils": _utils,
    "triton": _triton,
    "triton.language": _nothing,
}


class StandInLoader(Loader):
    """Fills a module from the table."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name.partition(".")[0] == "triton":
            from swift_diloco.cpu import triton_stand_in

            setattr(module, "__getattr__", triton_stand_in.placeholders(module))  # noqa: B010
        vars(module).update(TABLE[name]())
        for child in TABLE:
            if child.rpartition(".")[0] == name:
                importlib.import_module(child)


class StandInFinder(MetaPathFinder):
    """Finds the modules of the table whose top-level package is in `packages`."""

    def __init__(self, packages: frozenset[str]) -> None:
        self.packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.packages or fullname not in TABLE:
            return None
        return ModuleSpec(fullname, StandInLoader(), is_package=True)


def is_installed(package: str) -> bool:
    """Whether a real top-level package of this name is on sys.path."""
    return importlib.machinery.PathFinder.find_spec(package) is not None


def register() -> StandInFinder:
    """Put the finder before all others; `triton` is stood in for only where it is not installed."""
    packages = {"transformer_engine"} | (set() if is_installed("triton") else {"triton"})
    finder = StandInFinder(frozenset(packages))
    sys.meta_path.insert(0, finder)
    return finder
