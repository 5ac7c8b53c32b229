"""GroupedLinear: one weight per expert, applied to consecutive slices of the tokens. Communication is the caller's."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as functional

from swift_diloco.cpu.errors import refuse_options, unsupported
from swift_diloco.cpu.te.linear import LinearOptions, WithoutExtraState
from swift_diloco.cpu.te.parameters import Initialiser, new_parameter


class GroupedLinear(WithoutExtraState):
    """`num_gemms` linear layers in one; `m_splits` says how many tokens each of them gets."""

    def __init__(self, num_gemms: int, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__()
        parsed = LinearOptions.parse("GroupedLinear", options)
        if parsed.bias:
            raise unsupported("GroupedLinear with a bias", "use experts without bias")
        self.num_gemms, self.in_features, self.out_features = num_gemms, in_features, out_features
        self.use_bias, self.return_bias, self.apply_bias = False, parsed.return_bias, False
        self.parallel_mode, self.tp_size = parsed.parallel_mode, parsed.tp_size
        initialiser = Initialiser(parsed.init_method, parsed.get_rng_state_tracker, parsed.rng_tracker_name)
        for index in range(num_gemms):
            weight = new_parameter((out_features, in_features), parsed.params_dtype, parsed.device)
            initialiser.fill(weight)
            self.register_parameter(f"weight{index}", weight)

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """Megatron calls it before it loads a checkpoint."""

    def forward(
        self, values: torch.Tensor, m_splits: Sequence[int], is_first_microbatch: bool | None = None, **options: Any
    ) -> torch.Tensor:
        del is_first_microbatch
        refuse_options("GroupedLinear.forward", options)
        parts = torch.split(values, list(m_splits))
        return torch.cat([functional.linear(part, getattr(self, f"weight{i}")) for i, part in enumerate(parts)])
