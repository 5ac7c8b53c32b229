"""Names of Transformer Engine that exist so that Megatron can import them, and refuse to be used."""

from typing import Any

import torch

from swift_diloco.cpu.errors import unsupported


def unsupported_class(feature: str, instead: str = "") -> type:
    """A class that can be named and asked about with isinstance; making an object of it raises."""

    def __init__(self: object, *_: object, **__: object) -> None:
        raise unsupported(feature, instead)

    return type(feature.rsplit(" ", 1)[-1], (), {"__init__": __init__, "__doc__": f"Stands for {feature}; refuses."})


def apply_rotary_pos_emb(*_: object, **__: object) -> torch.Tensor:
    raise unsupported("fused RoPE", "use --apply_rope_fusion false")


class SplitAlongDim:
    """torch.split under the name of an autograd function of Transformer Engine."""

    @staticmethod
    def apply(values: torch.Tensor, dimension: int, sections: Any, squeeze: bool = False) -> tuple[torch.Tensor, ...]:
        parts = torch.split(values, sections, dim=dimension)
        return tuple(part.squeeze(dimension) for part in parts) if squeeze else parts
