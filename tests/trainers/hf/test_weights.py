"""FP32 values of low-precision weights: outer steps are not rounded away, training's moves are followed exactly."""

from __future__ import annotations

import pytest
import torch

from swift_diloco.trainers.hf.weights import Weight


def values_of(weight: Weight) -> torch.Tensor:
    out = torch.empty(weight.elements)
    weight.read(out)
    return out


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.view(torch.int32).tolist()


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_fp32_weights_are_their_own_values(random: torch.Generator) -> None:
    parameter = torch.randn(5, 4, generator=random)
    weight = Weight(parameter, 3, 11)
    assert weight.master is None
    new = torch.arange(8.0)
    weight.write(new)
    assert parameter.view(-1)[3:11].equal(new)
    assert values_of(weight).equal(new)


def test_what_was_written_is_read_back_bit_for_bit(random: torch.Generator) -> None:
    parameter = torch.randn(4000, generator=random).bfloat16()
    weight = Weight(parameter, 0, 4000)
    assert values_of(weight).equal(parameter.float()), "before the first write the weights are the values"
    new = torch.randn(4000, generator=random) * torch.logspace(-30, 30, 4000)
    new[0] = -0.0
    weight.write(new)
    assert bits(values_of(weight)) == bits(new)
    assert parameter.equal(new.bfloat16())


def test_outer_steps_below_the_resolution_of_bf16_add_up() -> None:
    parameter = torch.ones(1, dtype=torch.bfloat16)
    weight = Weight(parameter, 0, 1)
    for _ in range(8):  # the next bf16 number after 1 is 1 + 2**-7
        weight.write(values_of(weight) + 2.0**-9)
    assert values_of(weight).item() == 1 + 8 * 2.0**-9
    assert parameter.item() == 1 + 2.0**-6


def test_a_read_differs_from_the_last_write_by_what_training_moved(random: torch.Generator) -> None:
    parameter = torch.randn(1000, generator=random).bfloat16()
    weight = Weight(parameter, 0, 1000)
    written = torch.randn(1000, generator=random)
    weight.write(written)
    moved = parameter.float()
    parameter[::2] += 0.25  # training, in bf16
    expected = written + (parameter.float() - moved)
    got = values_of(weight)
    assert got[::2].equal(expected[::2])
    assert bits(got[1::2]) == bits(written[1::2]), "what did not move keeps its bits"
    assert values_of(weight).equal(got), "reading changes nothing"


def test_a_weight_in_another_binade_still_adds_what_it_moved() -> None:
    """1 + 2**-9 is written, rounded to 1; training halves the weight: the value follows by exactly -0.5."""
    parameter = torch.zeros(1, dtype=torch.bfloat16)
    weight = Weight(parameter, 0, 1)
    weight.write(torch.tensor([1 + 2.0**-9]))
    parameter.mul_(0.5)
    assert values_of(weight).item() == 0.5 + 2.0**-9


def test_only_the_owned_range_is_copied() -> None:
    weight = Weight(torch.zeros(1000, dtype=torch.bfloat16), 100, 350)
    assert weight.master is not None and weight.master.numel() == weight.elements == 250
