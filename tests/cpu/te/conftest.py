"""Pays once for what torch loads at its first optimizer step and its first contraction, so that no test does."""

import pytest
import torch

from swift_diloco.cpu.te.optimizers import FusedAdam


@pytest.fixture(scope="session", autouse=True)
def _torch_has_loaded_its_parts() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    FusedAdam([parameter]).step()
    matrix = torch.zeros(2, 2, 2, dtype=torch.float64)
    torch.einsum("qhc,khc->hqk", matrix, matrix).masked_fill(matrix.bool(), 0.0).softmax(-1)
