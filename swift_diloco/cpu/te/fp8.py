"""The FP8 parts of Transformer Engine that Megatron touches even with FP8 off. Switching FP8 on is an error."""

from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any

from swift_diloco.cpu.errors import unsupported

_ADVICE = "train in bf16, without --fp8_format, --fp8_recipe, --fp8_param_gather and --fp4_format"


class Format(Enum):
    """FP8 number formats; named by Megatron in defaults, never used."""

    E4M3 = 0
    HYBRID = 1


class Recipe:
    """Any FP8 or FP4 scaling recipe: cannot be made on a CPU."""

    def __init__(self, *_: object, **__: object) -> None:
        raise unsupported(f"FP8/FP4 recipe {type(self).__name__}", _ADVICE)


class DelayedScaling(Recipe):
    """See Recipe."""


class Float8CurrentScaling(Recipe):
    """See Recipe."""


class Float8BlockScaling(Recipe):
    """See Recipe."""


class MXFP8BlockScaling(Recipe):
    """See Recipe."""


class NVFP4BlockScaling(Recipe):
    """See Recipe."""


class Float8Tensor:
    """No tensor is ever one of these; Megatron only asks with isinstance."""


class QuantizedTensor:
    """No tensor is ever one of these; Megatron only asks with isinstance."""


class FP8GlobalStateManager:
    """Says that FP8 is off and not available."""

    FP8_ENABLED = False

    @staticmethod
    def is_fp8_enabled() -> bool:
        return False

    @staticmethod
    def is_fp8_available() -> tuple[bool, str]:
        return False, "FP8 is not supported on the CPU platform"

    @staticmethod
    def get_fp8_recipe() -> None:
        return None

    @staticmethod
    def is_first_fp8_module() -> bool:
        return False

    @staticmethod
    def reset() -> None:
        return None


def fp8_autocast(enabled: bool = True, **_: Any) -> AbstractContextManager[None]:
    """A context that does nothing; it may only be entered with `enabled=False`."""
    if enabled:
        raise unsupported("FP8 autocast", _ADVICE)
    return nullcontext()


def fp8_model_init(enabled: bool = True, **_: Any) -> AbstractContextManager[None]:
    """A context that does nothing; it may only be entered with `enabled=False`."""
    if enabled:
        raise unsupported("FP8 parameters", _ADVICE)
    return nullcontext()
