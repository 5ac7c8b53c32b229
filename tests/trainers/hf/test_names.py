"""Trained tensors are named as an export names them, whatever the adapter is called."""

from __future__ import annotations

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.trainers.hf.names import exported_name, exported_names

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{LAYER}.lora_A.default.weight", f"{LAYER}.lora_A.weight"),
        (f"{LAYER}.lora_magnitude_vector.default.weight", f"{LAYER}.lora_magnitude_vector.weight"),
        ("base_model.model.lm_head.modules_to_save.default.weight", "base_model.model.lm_head.weight"),
        ("model.embed_tokens.lora_embedding_A.default", "model.embed_tokens.lora_embedding_A"),
        ("model.layers.0.default.weight", "model.layers.0.default.weight"),
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
    ],
)
def test_adapter_names_and_wrappers_are_left_out(name: str, expected: str) -> None:
    assert exported_name(name, {"default"}) == expected


def test_the_name_of_the_adapter_makes_no_difference() -> None:
    assert exported_name(f"{LAYER}.lora_B.mine.weight", {"mine"}) == exported_name(
        f"{LAYER}.lora_B.default.weight", {"default"}
    )


def test_two_trained_adapters_are_refused_by_name() -> None:
    names = [f"{LAYER}.lora_A.{adapter}.weight" for adapter in ("one", "two")]
    with pytest.raises(UserError, match=r"lora_A.one.weight' and .*lora_A.two.weight' are both trained"):
        exported_names(names, {"one", "two"})
