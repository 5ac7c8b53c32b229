"""RMSNorm and LayerNorm, and the function both share with the fused LayerNormLinear."""

from collections.abc import Sequence

import torch
import torch.nn.functional as functional

from swift_diloco.cpu.errors import refuse_options, unsupported
from swift_diloco.cpu.te.parameters import mark_sequence_parallel, new_parameter


def normalise(
    values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, zero_centered: bool
) -> torch.Tensor:
    """Layer norm when there is a bias, RMS norm otherwise; the result has the dtype of `values`."""
    gain = (weight + 1 if zero_centered else weight).to(values.dtype)
    shape = (values.shape[-1],)
    if bias is None:
        return functional.rms_norm(values, shape, gain, eps)
    return functional.layer_norm(values, shape, gain, bias.to(values.dtype), eps)


class _Norm(torch.nn.Module):
    """Common part: one gain per hidden unit, replicated over tensor-parallel ranks."""

    _has_bias = False

    def __init__(
        self,
        normalized_shape: int | Sequence[int] | None = None,
        eps: float = 1e-5,
        *,
        hidden_size: int | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        size = normalized_shape if hidden_size is None else hidden_size
        if not isinstance(size, int):
            raise unsupported(f"{type(self).__name__} over the shape {size!r}", "use one hidden size")
        self.eps = eps
        self.zero_centered_gamma = bool(options.pop("zero_centered_gamma", False))
        sequence_parallel = bool(options.pop("sequence_parallel", False))
        dtype, device = options.pop("params_dtype", None), options.pop("device", "cpu")
        assert dtype is None or isinstance(dtype, torch.dtype)
        refuse_options(type(self).__name__, options)
        self.weight = new_parameter((size,), dtype, device, 0.0 if self.zero_centered_gamma else 1.0)
        mark_sequence_parallel(self.weight, sequence_parallel)
        self.bias: torch.nn.Parameter | None = None
        if self._has_bias:
            self.bias = new_parameter((size,), dtype, device, 0.0)
            mark_sequence_parallel(self.bias, sequence_parallel)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return normalise(values, self.weight, self.bias, self.eps, self.zero_centered_gamma)


class RMSNorm(_Norm):
    """Root-mean-square norm."""


class LayerNorm(_Norm):
    """Layer norm with a bias."""

    _has_bias = True
