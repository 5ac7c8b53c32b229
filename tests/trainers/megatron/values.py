"""Global tensors in tests: what the probe installs, its reports put together, and names in a Hugging Face model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from swift_diloco.core.layout.tensors import TensorSpec
from tests.forkserver.tiny import HIDDEN, LAYERS

GROUPS = 2
"""Key-value groups of the tiny model; each has the rows of two query heads, a key and a value head, in this order."""
HEAD = 16
QUERY_ROWS = 2 * HEAD


def new_values(number: int, spec: TensorSpec) -> torch.Tensor:
    """The values that the probe installs for a global tensor: the same on every layout."""
    generator = torch.Generator().manual_seed(1000 + number)
    noise = torch.randn(spec.shape, generator=generator) * 0.02
    return noise + 1.0 if "norm" in spec.name else noise


def slices(start: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))


def assemble(folder: Path, moment: str, ranks: int, shapes: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """The global tensors from what all ranks own; elements that nobody owns are NaN."""
    tensors = {name: torch.full(tuple(shape), float("nan")) for name, shape in shapes.items()}
    for rank in range(ranks):
        with np.load(folder / f"{moment}-{rank}.npz") as arrays:
            for key in arrays.files:
                name, _, start = key.partition("|")
                values = torch.from_numpy(arrays[key])
                tensors[name][slices(json.loads(start), values.shape)] = values
    return tensors


def hugging_face(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same values under their names in a Hugging Face Qwen3 model."""
    named = {
        "model.embed_tokens.weight": tensors["embedding.word_embeddings.weight"],
        "model.norm.weight": tensors["decoder.final_layernorm.weight"],
    }
    if "output_layer.weight" in tensors:
        named["lm_head.weight"] = tensors["output_layer.weight"]
    for i in range(LAYERS):
        ours, theirs = f"decoder.layers.{i}", f"model.layers.{i}"
        attention = tensors[f"{ours}.self_attention.linear_qkv.weight"].view(GROUPS, -1, HIDDEN)
        q, k, v = torch.split(attention, [QUERY_ROWS, HEAD, HEAD], dim=1)
        named |= {
            f"{theirs}.self_attn.q_proj.weight": q.reshape(-1, HIDDEN),
            f"{theirs}.self_attn.k_proj.weight": k.reshape(-1, HIDDEN),
            f"{theirs}.self_attn.v_proj.weight": v.reshape(-1, HIDDEN),
            f"{theirs}.self_attn.o_proj.weight": tensors[f"{ours}.self_attention.linear_proj.weight"],
            f"{theirs}.self_attn.q_norm.weight": tensors[f"{ours}.self_attention.q_layernorm.weight"],
            f"{theirs}.self_attn.k_norm.weight": tensors[f"{ours}.self_attention.k_layernorm.weight"],
            f"{theirs}.input_layernorm.weight": tensors[f"{ours}.self_attention.linear_qkv.layer_norm_weight"],
            f"{theirs}.post_attention_layernorm.weight": tensors[f"{ours}.mlp.linear_fc1.layer_norm_weight"],
            f"{theirs}.mlp.gate_proj.weight": tensors[f"{ours}.mlp.linear_fc1.weight_w"],
            f"{theirs}.mlp.up_proj.weight": tensors[f"{ours}.mlp.linear_fc1.weight_v"],
            f"{theirs}.mlp.down_proj.weight": tensors[f"{ours}.mlp.linear_fc2.weight"],
        }
    return named
