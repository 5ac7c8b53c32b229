"""DotProductAttention on torch's scaled_dot_product_attention, for whole batches (sbhd) and packed sequences (thd).

It knows no context parallelism and no sliding window; asking for them is an error that names them.
"""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as functional

from swift_diloco.cpu.errors import refuse_options, unsupported
from swift_diloco.cpu.te.linear import WithoutExtraState

# Arguments of Transformer Engine's constructor and forward that choose kernels or describe what the tensors say anyway.
_IGNORED_AT_CREATION = frozenset(
    {"kv_channels", "num_gqa_groups", "attention_type", "tp_size", "tp_group", "sequence_parallel", "layer_number",
     "qkv_format", "cp_comm_type", "cp_global_ranks", "cp_stream"}
)  # fmt: skip
_IGNORED_AT_CALL = frozenset(
    {"max_seqlen_q", "max_seqlen_kv", "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded",
     "total_tokens", "pad_between_seqs", "cp_group", "local_cp_size"}
)  # fmt: skip
_NO_WINDOW = (None, (-1, -1), (-1, 0))


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **options: Any
) -> torch.Tensor:
    """[batch, heads, length, channels] each; fewer key heads than query heads are grouped-query attention."""
    grouped = query.shape[1] != key.shape[1]
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped, **options)


class DotProductAttention(WithoutExtraState):
    """softmax(q k^T scale) v; heads are already cut over tensor-parallel ranks by the projections before it."""

    def __init__(
        self,
        num_attention_heads: int,
        *,
        attention_dropout: float = 0.0,
        softmax_scale: float | None = None,
        attn_mask_type: str = "causal",
        get_rng_state_tracker: Callable[[], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_dropout, self.softmax_scale = attention_dropout, softmax_scale
        self.attn_mask_type, self._get_tracker = attn_mask_type, get_rng_state_tracker
        if options.pop("cp_group", None) is not None:
            raise unsupported("context parallelism", "use --context_parallel_size 1")
        window = options.pop("window_size", None)
        if (None if window is None else tuple(window)) not in _NO_WINDOW:
            raise unsupported(f"sliding-window attention (window_size={window})")
        if options.pop("softmax_type", "vanilla") != "vanilla":
            raise unsupported("softmax_type other than vanilla")
        refuse_options("DotProductAttention", {k: v for k, v in options.items() if k not in _IGNORED_AT_CREATION})

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        layout = options.pop("qkv_format", "sbhd")
        mask_type = str(options.pop("attn_mask_type", None) or self.attn_mask_type)
        offsets = options.get("cu_seqlens_q_padded")
        offsets = options.get("cu_seqlens_q") if offsets is None else offsets
        refuse_options("DotProductAttention.forward", {k: v for k, v in options.items() if k not in _IGNORED_AT_CALL})
        with self._dropout_fork():
            if layout == "sbhd":
                return self._whole_batch(query_layer, key_layer, value_layer, attention_mask, mask_type)
            if layout == "thd" and offsets is not None:
                return self._packed((query_layer, key_layer, value_layer), offsets.tolist(), "causal" in mask_type)
        raise unsupported(f"attention layout {layout!r}", "use sbhd, or thd with cu_seqlens_q")

    def _options(self) -> dict[str, Any]:
        return {"scale": self.softmax_scale, "dropout_p": self.attention_dropout if self.training else 0.0}

    def _dropout_fork(self) -> AbstractContextManager[None]:
        if self._get_tracker is None or not self.training or self.attention_dropout == 0.0:
            return nullcontext()
        fork: AbstractContextManager[None] = self._get_tracker().fork()
        return fork

    def _whole_batch(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        mask_type: str,
    ) -> torch.Tensor:
        length, batch = query.shape[0], query.shape[1]
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        # As in Transformer Engine: plain "causal" and "no_mask" do not look at the mask; True in a mask means hidden.
        visible = None
        if attention_mask is not None and mask_type not in ("causal", "no_mask", "causal_bottom_right"):
            visible = ~attention_mask
            if "causal" in mask_type:
                causal = torch.ones(length, key.shape[2], dtype=torch.bool).tril(key.shape[2] - length)
                visible = visible & causal
        causal_only = visible is None and "causal" in mask_type
        output = _attend(query, key, value, visible, is_causal=causal_only, **self._options())
        return output.permute(2, 0, 1, 3).reshape(length, batch, -1)

    def _packed(
        self, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], offsets: list[int], causal: bool
    ) -> torch.Tensor:
        """One call per sequence; tokens after the last sequence are padding and get zeros."""
        total, parts = tensors[0].shape[0], []
        for begin, end in itertools.pairwise(offsets):
            if end == begin:
                continue
            query, key, value = (tensor[begin:end].transpose(0, 1)[None] for tensor in tensors)
            output = _attend(query, key, value, None, is_causal=causal, **self._options())
            parts.append(output[0].transpose(0, 1).reshape(end - begin, -1))
        if offsets[-1] < total:
            parts.append(parts[0].new_zeros(total - offsets[-1], parts[0].shape[-1]))
        return torch.cat(parts)
