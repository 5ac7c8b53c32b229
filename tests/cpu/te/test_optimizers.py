"""FusedAdam against a float64 reference and torch; the multi-tensor helpers against plain formulas."""

import copy
import math
from typing import Any

import pytest
import torch

from swift_diloco.cpu.errors import UnsupportedOnCpuError
from swift_diloco.cpu.te.optimizers import (
    FusedAdam,
    FusedSGD,
    multi_tensor_applier,
    multi_tensor_l2norm,
    multi_tensor_scale,
)

LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in (3, 5)]


def set_gradients(values: list[torch.nn.Parameter], step: int) -> None:
    for index, parameter in enumerate(values):
        parameter.grad = torch.sin(torch.arange(parameter.numel()) + 10 * index + step)


def adamw_by_hand(value: float, gradients: list[float], decoupled: bool) -> float:
    """The update rule of AdamW (and Adam) for one number in float64."""
    first = second = 0.0
    for step, gradient in enumerate(gradients, start=1):
        if decoupled:
            value -= LR * DECAY * value
        else:
            gradient += DECAY * value
        first = BETAS[0] * first + (1 - BETAS[0]) * gradient
        second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
        mean, spread = first / (1 - BETAS[0] ** step), second / (1 - BETAS[1] ** step)
        value -= LR * mean / (math.sqrt(spread) + EPS)
    return value


def new_adam(values: list[torch.nn.Parameter], **options: Any) -> FusedAdam:
    return FusedAdam(values, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, **options)


@pytest.mark.parametrize("decoupled", [True, False])
def test_three_steps_are_the_update_rule(decoupled: bool) -> None:
    values, expected = parameters(), [parameter.tolist() for parameter in parameters()]
    optimizer, gradients = new_adam(values, adam_w_mode=decoupled), []
    for step in range(3):
        set_gradients(values, step)
        gradients.append([parameter.grad.tolist() for parameter in values])  # type: ignore[union-attr]
        optimizer.step()
    for index, start in enumerate(expected):
        for place, value in enumerate(start):
            wanted = adamw_by_hand(value, [step[index][place] for step in gradients], decoupled)
            assert values[index][place].item() == pytest.approx(wanted, rel=2e-6)


def test_steps_are_counted_in_the_param_groups_and_not_per_parameter() -> None:
    values = parameters()
    optimizer = new_adam(values)
    for step in range(2):
        set_gradients(values, step)
        optimizer.step()
    state = optimizer.state_dict()
    assert [group["step"] for group in state["param_groups"]] == [2]
    assert [sorted(each) for each in state["state"].values()] == [["exp_avg", "exp_avg_sq"]] * 2


def test_an_empty_group_counts_no_steps() -> None:
    values = parameters()
    optimizer = FusedAdam([{"params": values}, {"params": []}])
    set_gradients(values, 0)
    optimizer.step()
    assert ["step" in group for group in optimizer.param_groups] == [True, False]


def test_a_loaded_state_goes_on_bit_for_bit() -> None:
    values = parameters()
    optimizer = new_adam(values)
    set_gradients(values, 0)
    optimizer.step()
    others = [torch.nn.Parameter(parameter.detach().clone()) for parameter in values]
    resumed = new_adam(others)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, its in ((optimizer, values), (resumed, others)):
        set_gradients(its, 1)
        each.step()
    assert all(torch.equal(one, other) for one, other in zip(values, others, strict=True))


def test_parameters_without_gradients_stay() -> None:
    values = parameters()
    before = values[1].detach().clone()
    set_gradients(values, 0)
    values[1].grad = None
    new_adam(values).step()
    assert torch.equal(values[1], before)


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"bias_correction": False}, "bias_correction"),
        ({"exp_avg_dtype": torch.bfloat16}, "exp_avg_dtype"),
        ({"master_weights": True}, "master_weights"),
        ({"use_decoupled_grad": True}, "use_decoupled_grad"),
    ],
)
def test_unsupported_options_are_named(options: dict[str, Any], feature: str) -> None:
    with pytest.raises(UnsupportedOnCpuError, match=feature):
        FusedAdam(parameters(), **options)


def test_sgd_is_torch_s() -> None:
    assert issubclass(FusedSGD, torch.optim.SGD)


def test_scaling_writes_the_second_list_and_flags_what_is_not_finite() -> None:
    overflow, source = torch.zeros(1, dtype=torch.int), [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    target = [torch.zeros(2, dtype=torch.bfloat16), torch.zeros(1)]
    multi_tensor_applier(multi_tensor_scale, overflow, [source, target], 0.5)
    assert [tensor.tolist() for tensor in target] == [[0.5, 1.0], [1.5]] and overflow.item() == 0
    multi_tensor_applier(multi_tensor_scale, overflow, [[torch.tensor([float("inf")])], [torch.zeros(1)]], 1.0)
    assert overflow.item() == 1


def test_the_norm_is_over_all_tensors() -> None:
    tensors = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]], dtype=torch.bfloat16)]
    overflow = torch.zeros(1, dtype=torch.int)
    total, each = multi_tensor_applier(multi_tensor_l2norm, overflow, [tensors], True)
    assert total.tolist() == [5.0] and each.tolist() == [3.0, 4.0]
    total, each = multi_tensor_applier(multi_tensor_l2norm, overflow, [[]], False)
    assert total.tolist() == [0.0] and each is None
