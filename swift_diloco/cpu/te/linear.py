"""Linear and LayerNormLinear with tensor and sequence parallelism, on Megatron's own autograd mappings.

Column parallel: the weight is cut over its outputs; the input is replicated (or gathered from the sequence parts).
Row parallel: the weight is cut over its inputs; the outputs are summed over the ranks (or scattered to sequence parts).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional

from swift_diloco.cpu.errors import refuse_options, unsupported
from swift_diloco.cpu.te.norms import normalise
from swift_diloco.cpu.te.parameters import (
    Initialiser,
    InitMethod,
    mark_sequence_parallel,
    mark_tensor_parallel,
    new_parameter,
)


def _mappings() -> Any:
    """Megatron's mappings; imported late, because Megatron imports this package while it is being imported itself."""
    from megatron.core.tensor_parallel import mappings

    return mappings


@dataclass(frozen=True)
class LinearOptions:
    """The arguments of Transformer Engine's linear layers that mean something on a CPU; others are refused."""

    sequence_parallel: bool = False
    tp_group: Any = None
    tp_size: int = 1
    get_rng_state_tracker: Callable[[], Any] | None = None
    rng_tracker_name: str | None = None
    init_method: InitMethod | None = None
    bias: bool = True
    return_bias: bool = False
    parallel_mode: str | None = None
    params_dtype: torch.dtype | None = None
    device: object = "cpu"
    fuse_wgrad_accumulation: bool = False
    ub_name: str | None = None  # of a buffer for overlapped communication; the overlap itself is refused

    @classmethod
    def parse(cls, owner: str, options: dict[str, Any]) -> "LinearOptions":
        known = {name: value for name, value in options.items() if name in cls.__dataclass_fields__}
        refuse_options(owner, {name: value for name, value in options.items() if name not in known})
        parsed = cls(**known)
        if parsed.fuse_wgrad_accumulation:
            raise unsupported("gradient accumulation fusion", "use --gradient_accumulation_fusion false")
        if parsed.parallel_mode not in (None, "column", "row"):
            raise unsupported(f"{owner}(parallel_mode={parsed.parallel_mode!r})", "use column, row or none")
        return parsed


class WithoutExtraState(torch.nn.Module):
    """A module whose extra state (FP8 scaling factors in Transformer Engine) is there, empty and ignored on load.

    Megatron reads and sets the attributes on every layer of Transformer Engine, with FP8 or without.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fp8, self.fp8_calibration, self.save_original_input = False, False, False
        self.fp8_meta: dict[str, object] = {"fp8_checkpoint": False}

    def get_extra_state(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: object) -> None:
        del state


class Linear(WithoutExtraState):
    """y = x W^T (+ b), cut over tensor-parallel ranks as `parallel_mode` says."""

    def __init__(self, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__()
        parsed = LinearOptions.parse(type(self).__name__, options)
        self.parallel_mode, self.tp_group, self.tp_size = parsed.parallel_mode, parsed.tp_group, parsed.tp_size
        self.sequence_parallel = parsed.sequence_parallel and parsed.tp_size > 1
        self.use_bias, self.return_bias = parsed.bias, parsed.return_bias
        self.in_features = in_features // (parsed.tp_size if parsed.parallel_mode == "row" else 1)
        self.out_features = out_features // (parsed.tp_size if parsed.parallel_mode == "column" else 1)
        self._create(parsed)

    def _create(self, options: LinearOptions) -> None:
        shape = (self.out_features, self.in_features)
        self.weight = new_parameter(shape, options.params_dtype, options.device)
        Initialiser(options.init_method, options.get_rng_state_tracker, options.rng_tracker_name).fill(self.weight)
        self.bias: torch.nn.Parameter | None = None
        if options.bias:
            self.bias = new_parameter((self.out_features,), options.params_dtype, options.device, 0.0)
        if self.parallel_mode == "column":
            mark_tensor_parallel(self.weight, 0)
            if self.bias is not None:
                mark_tensor_parallel(self.bias, 0)
        elif self.parallel_mode == "row":
            mark_tensor_parallel(self.weight, 1)
            if self.bias is not None:
                mark_sequence_parallel(self.bias, self.sequence_parallel)

    def forward(self, values: torch.Tensor, is_first_microbatch: bool | None = None, **options: Any) -> Any:
        del is_first_microbatch  # only steers the caching of FP8 weights
        refuse_options(f"{type(self).__name__}.forward", options)
        return self._with_bias(self.multiply(values))

    def multiply(self, values: torch.Tensor) -> torch.Tensor:
        """x W^T with the communication of the parallel mode, without the bias."""
        values = values.to(self.weight.dtype)
        if self.tp_size == 1 or self.parallel_mode is None:
            return functional.linear(values, self.weight)
        mappings = _mappings()
        if self.parallel_mode == "column":
            if self.sequence_parallel:
                values = mappings.gather_from_sequence_parallel_region(values, True, self.tp_group)
            else:
                values = mappings.copy_to_tensor_model_parallel_region(values, self.tp_group)
            return functional.linear(values, self.weight)
        partial = functional.linear(values, self.weight)
        if self.sequence_parallel:
            scattered: torch.Tensor = mappings.reduce_scatter_to_sequence_parallel_region(partial, self.tp_group)
            return scattered
        reduced: torch.Tensor = mappings.reduce_from_tensor_model_parallel_region(partial, self.tp_group)
        return reduced

    def _with_bias(self, product: torch.Tensor) -> Any:
        if self.return_bias:
            return product, self.bias
        return product if self.bias is None else product + self.bias

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        self.tp_group = tp_group


class LayerNormLinear(Linear):
    """A norm followed by a linear layer; the norm works on this rank's part of the sequence, before it is gathered."""

    def __init__(self, in_features: int, out_features: int, eps: float = 1e-5, **options: Any) -> None:
        normalization = options.pop("normalization", "LayerNorm")
        if normalization not in ("LayerNorm", "RMSNorm"):
            raise unsupported(f"normalization {normalization!r}", "use LayerNorm or RMSNorm")
        zero_centered = bool(options.pop("zero_centered_gamma", False))
        # LoRA switches this on to feed its own first matrix with what the norm gave.
        returns_norm = bool(options.pop("return_layernorm_output", False))
        super().__init__(in_features, out_features, **options)
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered
        self.return_layernorm_output = returns_norm
        device = self.weight.device
        self.layer_norm_weight = new_parameter((in_features,), self.weight.dtype, device, 0.0 if zero_centered else 1.0)
        mark_sequence_parallel(self.layer_norm_weight, self.sequence_parallel)
        self.layer_norm_bias: torch.nn.Parameter | None = None
        if normalization == "LayerNorm":
            self.layer_norm_bias = new_parameter((in_features,), self.weight.dtype, device, 0.0)
            mark_sequence_parallel(self.layer_norm_bias, self.sequence_parallel)

    def forward(self, values: torch.Tensor, is_first_microbatch: bool | None = None, **options: Any) -> Any:
        del is_first_microbatch
        refuse_options("LayerNormLinear.forward", options)
        normed = normalise(values, self.layer_norm_weight, self.layer_norm_bias, self.eps, self.zero_centered_gamma)
        output = self._with_bias(self.multiply(normed))
        if not self.return_layernorm_output:
            return output
        return (*output, normed) if self.return_bias else (output, normed)
