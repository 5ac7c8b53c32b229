"""Several linear layers in one, each for its slice of the tokens."""

import pytest
import torch
import torch.nn.functional as functional

from swift_diloco.cpu.errors import UnsupportedOnCpuError
from swift_diloco.cpu.te.grouped import GroupedLinear
from tests.cpu.te.test_linear import VALUES, fill


def test_each_expert_of_a_grouped_linear_gets_its_slice() -> None:
    layer = GroupedLinear(2, 8, 4, bias=False, init_method=fill)
    first, second = layer.get_parameter("weight0"), layer.get_parameter("weight1")
    second.data.mul_(-1)
    output = layer(VALUES, [1, 2])
    torch.testing.assert_close(output[:1], functional.linear(VALUES[:1], first))
    torch.testing.assert_close(output[1:], functional.linear(VALUES[1:], second))


def test_expert_without_tokens_adds_nothing_to_the_output() -> None:
    layer = GroupedLinear(2, 8, 4, bias=False, init_method=fill)
    torch.testing.assert_close(layer(VALUES, [0, 3]), functional.linear(VALUES, layer.get_parameter("weight1")))


def test_experts_with_a_bias_and_options_that_are_on_are_refused() -> None:
    with pytest.raises(UnsupportedOnCpuError, match="GroupedLinear with a bias"):
        GroupedLinear(2, 8, 4, bias=True)
    layer = GroupedLinear(1, 8, 4, bias=False, init_method=fill)
    layer(VALUES, [3], is_first_microbatch=True, fp8_output=False)
    with pytest.raises(UnsupportedOnCpuError, match=r"GroupedLinear.forward\(fp8_output=True\)"):
        layer(VALUES, [3], fp8_output=True)
