"""Attention against the formula, for whole batches and packed sequences."""

from typing import Any

import pytest
import torch

from swift_diloco.cpu.errors import UnsupportedOnCpuError
from swift_diloco.cpu.te.attention import DotProductAttention

LENGTH, BATCH, HEADS, GROUPS, CHANNELS = 6, 2, 4, 2, 3


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def formula(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """[length, heads, channels] of one sequence; `hidden` is True where a query may not look."""
    key, value = (tensor.repeat_interleave(HEADS // GROUPS, dim=1) for tensor in (key, value))
    scores = torch.einsum("qhc,khc->hqk", query, key) * CHANNELS**-0.5
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khc->qhc", weights, value).reshape(query.shape[0], -1)


def causal(length: int) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def batch() -> list[torch.Tensor]:
    return [random(LENGTH, BATCH, heads, CHANNELS) for heads in (HEADS, GROUPS, GROUPS)]


@pytest.mark.parametrize(("mask_type", "hidden"), [("causal", causal(LENGTH)), ("no_mask", ~causal(1).any())])
def test_a_whole_batch_is_the_formula_per_sequence(mask_type: str, hidden: torch.Tensor) -> None:
    query, key, value = batch()
    hidden = hidden if mask_type == "causal" else torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    output = DotProductAttention(HEADS, attn_mask_type=mask_type)(query, key, value)
    for index in range(BATCH):
        expected = formula(query[:, index], key[:, index], value[:, index], hidden)
        torch.testing.assert_close(output[:, index], expected)


def test_a_padding_mask_hides_keys_together_with_causality() -> None:
    query, key, value = batch()
    padding = torch.zeros(BATCH, 1, 1, LENGTH, dtype=torch.bool)
    padding[1, ..., 4:] = True
    attention = DotProductAttention(HEADS, attn_mask_type="padding_causal")
    output = attention(query, key, value, padding)
    torch.testing.assert_close(output[:, 1], formula(query[:, 1], key[:, 1], value[:, 1], causal(6) | padding[1, 0]))
    whole = attention(query, key, value, padding, attn_mask_type="causal")
    torch.testing.assert_close(whole[:, 1], formula(query[:, 1], key[:, 1], value[:, 1], causal(6)))


def test_packed_sequences_do_not_see_each_other_and_padding_is_zero() -> None:
    query, key, value = (random(8, heads, CHANNELS) for heads in (HEADS, GROUPS, GROUPS))
    offsets = torch.tensor([0, 2, 2, 7], dtype=torch.int32)
    output = DotProductAttention(HEADS, attn_mask_type="padding_causal")(
        query, key, value, qkv_format="thd", cu_seqlens_q=offsets, max_seqlen_q=5
    )
    for begin, end in ((0, 2), (2, 7)):
        expected = formula(query[begin:end], key[begin:end], value[begin:end], causal(end - begin))
        torch.testing.assert_close(output[begin:end], expected)
    assert torch.equal(output[7], torch.zeros(HEADS * CHANNELS, dtype=torch.float64))


def test_dropout_draws_from_the_tracker_only_in_training() -> None:
    forks: list[int] = []

    class Tracker:
        def fork(self) -> torch.autograd.grad_mode.no_grad:
            forks.append(1)
            return torch.no_grad()

    attention = DotProductAttention(HEADS, attention_dropout=0.5, get_rng_state_tracker=Tracker)
    attention(*batch())
    attention.eval()
    torch.testing.assert_close(attention(*batch()), DotProductAttention(HEADS)(*batch()))
    assert forks == [1]


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"cp_group": object()}, "context parallelism.*--context_parallel_size 1"),
        ({"window_size": (128, 0)}, "sliding-window attention"),
        ({"softmax_type": "learnable"}, "softmax_type"),
        ({"return_max_logit": True}, "return_max_logit"),
    ],
)
def test_unsupported_options_are_named(options: dict[str, Any], feature: str) -> None:
    with pytest.raises(UnsupportedOnCpuError, match=feature):
        DotProductAttention(HEADS, **options)


def test_unsupported_layouts_and_biases_are_named() -> None:
    attention = DotProductAttention(HEADS, window_size=(-1, 0), num_gqa_groups=GROUPS)
    with pytest.raises(UnsupportedOnCpuError, match="attention layout 'bshd'"):
        attention(*batch(), qkv_format="bshd")
    with pytest.raises(UnsupportedOnCpuError, match="core_attention_bias_type='alibi'"):
        attention(*batch(), core_attention_bias_type="alibi")
