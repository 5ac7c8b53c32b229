"""One rank's view of one trained tensor: the flat range that it owns, in FP32.

An FP32 parameter is its own value. Of a low-precision one this module keeps an FP32 copy M of the owned range, in host
memory (4 bytes per owned element; the ranks of an island share the elements evenly), because an outer step is often
smaller than the distance between two bf16 numbers and would be rounded away for good.

The rule, elementwise: a write of v makes M = v and the parameter bf16(v); training then moves the parameter, never M;
a read gives M where the parameter is still bf16(M), bit for bit, and M + (parameter - bf16(M)) where it moved. So what
a read differs from the last write by is exactly what training did, and what the islands merged is never lost.

Knows tensors only: neither layouts nor who else holds the parameter.
"""

from __future__ import annotations

import torch

from swift_diloco.core.numbers.kernels import bf16_follow, readonly


class Weight:
    """The elements [begin, end) of a parameter, owned by this rank."""

    def __init__(self, parameter: torch.Tensor, begin: int, end: int) -> None:
        self.begin = begin
        self._local = parameter.detach().view(-1)[begin:end]
        self._master: torch.Tensor | None = None
        if parameter.dtype != torch.float32:
            self._master = self._local.to(device="cpu", dtype=torch.float32, copy=True)

    @property
    def elements(self) -> int:
        return self._local.numel()

    @property
    def device(self) -> torch.device:
        return self._local.device

    @property
    def master(self) -> torch.Tensor | None:
        """The FP32 copy of low-precision weights (host memory); None where the parameter is FP32 itself."""
        return self._master

    def read(self, out: torch.Tensor) -> None:
        """The present FP32 values, into `out` (host memory)."""
        if self._master is None:
            out.copy_(self._local, non_blocking=True)
        else:
            codes = self._local.cpu().view(torch.uint16).numpy()
            bf16_follow(readonly(codes), readonly(self._master.numpy()), out.numpy())

    def write(self, values: torch.Tensor) -> None:
        """Make `values` (FP32) the weights."""
        if self._master is not None:
            self._master.copy_(values)
        self._local.copy_(values, non_blocking=True)
