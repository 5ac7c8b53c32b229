"""Norms against float64 formulas."""

import pytest
import torch

from swift_diloco.cpu.errors import UnsupportedOnCpuError
from swift_diloco.cpu.te.norms import LayerNorm, RMSNorm

VALUES = torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_rms_norm_is_the_formula() -> None:
    norm = RMSNorm(hidden_size=8, eps=1e-6, params_dtype=torch.float64)
    norm.weight.data.copy_(torch.arange(8))
    expected = VALUES / (VALUES.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * torch.arange(8)
    torch.testing.assert_close(norm(VALUES), expected)


def test_layer_norm_is_the_formula_with_its_bias() -> None:
    norm = LayerNorm(8, eps=1e-5, params_dtype=torch.float64)
    assert norm.bias is not None
    norm.bias.data.fill_(0.5)
    centered = VALUES - VALUES.mean(-1, keepdim=True)
    expected = centered / (centered.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() + 0.5
    torch.testing.assert_close(norm(VALUES), expected)


def test_a_zero_centered_gain_starts_at_zero_and_means_one() -> None:
    norm = RMSNorm(8, zero_centered_gamma=True, params_dtype=torch.float64)
    assert torch.equal(norm.weight, torch.zeros(8, dtype=torch.float64))
    torch.testing.assert_close(norm(VALUES), RMSNorm(8, params_dtype=torch.float64)(VALUES))


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_parameters_say_whether_they_see_a_part_of_the_sequence(sequence_parallel: bool) -> None:
    norm = LayerNorm(8, sequence_parallel=sequence_parallel)
    marks = [getattr(parameter, "sequence_parallel", None) for parameter in norm.parameters()]
    assert marks == [sequence_parallel] * 2


def test_unknown_options_and_shapes_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedOnCpuError, match=r"RMSNorm\(new_option=True\)"):
        RMSNorm(8, new_option=True)
    with pytest.raises(UnsupportedOnCpuError, match=r"RMSNorm over the shape \(2, 4\)"):
        RMSNorm((2, 4))
