"""Linear layers on one rank; their communication is checked by the parity of real tensor-parallel training."""

import pytest
import torch
import torch.nn.functional as functional

from swift_diloco.cpu.errors import UnsupportedOnCpuError
from swift_diloco.cpu.te.linear import LayerNormLinear, Linear

VALUES = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))


def fill(weight: torch.Tensor) -> torch.Tensor:
    return weight.copy_(torch.arange(weight.numel()).reshape(weight.shape) / weight.numel())


def test_linear_multiplies_and_adds_its_bias() -> None:
    layer = Linear(8, 4, init_method=fill)
    layer.bias.data.fill_(1.0)  # type: ignore[union-attr]
    torch.testing.assert_close(layer(VALUES), functional.linear(VALUES, layer.weight) + 1.0)


def test_a_returned_bias_is_not_added() -> None:
    layer = Linear(8, 4, init_method=fill, return_bias=True)
    output, bias = layer(VALUES)
    assert bias is layer.bias
    torch.testing.assert_close(output, functional.linear(VALUES, layer.weight))


def test_layer_norm_linear_is_the_norm_and_then_the_layer() -> None:
    layer = LayerNormLinear(8, 4, eps=1e-6, normalization="RMSNorm", bias=False, init_method=fill)
    normed = functional.rms_norm(VALUES, (8,), layer.layer_norm_weight, 1e-6)
    torch.testing.assert_close(layer(VALUES), functional.linear(normed, layer.weight))
    assert [name for name, _ in layer.named_parameters()] == ["weight", "layer_norm_weight"]


@pytest.mark.parametrize("return_bias", [True, False])
def test_the_norm_s_output_is_returned_last_when_it_is_asked_for(return_bias: bool) -> None:
    layer = LayerNormLinear(8, 4, return_bias=return_bias, init_method=fill)
    layer.return_layernorm_output = True
    output = layer(VALUES)
    assert len(output) == (3 if return_bias else 2)
    torch.testing.assert_close(output[-1], functional.layer_norm(VALUES, (8,)))
    torch.testing.assert_close(output[0], functional.linear(output[-1], layer.weight))


@pytest.mark.parametrize(("mode", "shape", "dimension"), [("column", (2, 8), 0), ("row", (4, 4), 1)])
def test_a_parallel_weight_is_one_rank_s_cut_and_says_so(mode: str, shape: tuple[int, int], dimension: int) -> None:
    layer = Linear(8, 4, parallel_mode=mode, tp_size=2, sequence_parallel=True, init_method=fill)
    assert tuple(layer.weight.shape) == shape
    weight, bias = vars(layer.weight), vars(layer.bias)
    assert weight == {"tensor_model_parallel": True, "partition_dim": dimension, "partition_stride": 1}
    assert bias == (weight if mode == "column" else {"sequence_parallel": True})


def test_the_norm_before_a_parallel_layer_is_replicated_over_parts_of_the_sequence() -> None:
    layer = LayerNormLinear(8, 4, parallel_mode="column", tp_size=2, sequence_parallel=True, init_method=fill)
    assert vars(layer.layer_norm_weight) == vars(layer.layer_norm_bias) == {"sequence_parallel": True}


def test_extra_state_is_empty_and_ignored() -> None:
    layer = Linear(8, 4, init_method=fill)
    layer.load_state_dict(layer.state_dict())
    assert layer.state_dict()["_extra_state"].numel() == 0


def test_weights_can_be_left_on_the_meta_device() -> None:
    assert Linear(8, 4, device="meta", init_method=fill).weight.is_meta
    assert not Linear(8, 4, device=torch.device("cpu"), init_method=fill).weight.is_meta


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"fuse_wgrad_accumulation": True}, "gradient accumulation fusion"),
        ({"ub_overlap_ag": True}, r"Linear\(ub_overlap_ag=True\)"),
        ({"delay_wgrad_compute": True}, r"Linear\(delay_wgrad_compute=True\)"),
        ({"parallel_mode": "diagonal"}, "parallel_mode='diagonal'"),
    ],
)
def test_unsupported_options_are_named(options: dict[str, object], feature: str) -> None:
    with pytest.raises(UnsupportedOnCpuError, match=feature):
        Linear(8, 4, **options)
    Linear(8, 4, ub_overlap_ag=False, delay_wgrad_compute=False)


def test_unsupported_norms_are_named() -> None:
    with pytest.raises(UnsupportedOnCpuError, match="BatchNorm"):
        LayerNormLinear(8, 4, normalization="BatchNorm")
