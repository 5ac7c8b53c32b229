"""The global layout: one order and fingerprint on all ranks, and what two models differ in."""

from __future__ import annotations

import msgspec
import pytest

from swift_diloco.core.errors import PeerError, UserError
from swift_diloco.core.layout.tensors import (
    DIMENSIONS_MAX,
    Layout,
    check_layout,
    first_difference,
    make_layout,
    merge_rule_of,
    natural_key,
)
from tests.core.layout.models import LAYERS, MODEL, spec


def test_layout_is_the_same_for_any_order_and_for_repeated_tensors() -> None:
    assert make_layout(MODEL) == make_layout([*reversed(MODEL), MODEL[3]])


def test_layers_are_in_the_order_of_their_numbers() -> None:
    names = [each.name for each in make_layout(LAYERS).tensors]
    assert names == [each.name for each in LAYERS]
    assert natural_key("layers.2.a") < natural_key("layers.10.a")


@pytest.mark.parametrize("change", [{"name": "other"}, {"shape": (5, 10)}, {"rule": "avg"}])
def test_fingerprint_depends_on_names_shapes_and_rules(change: dict[str, object]) -> None:
    changed = [msgspec.structs.replace(MODEL[0], **change), *MODEL[1:]]
    assert make_layout(changed).fingerprint != make_layout(MODEL).fingerprint


def test_fingerprint_is_pinned() -> None:
    assert make_layout([spec("a", 2, 3), spec("b", 4)]).fingerprint == "25d2c6bbaf289eaba42ace04f466fdfe"


def test_two_shapes_of_one_tensor_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'norm' has shape \[4\] on one rank and \[5\] on another"):
        make_layout([*MODEL, spec("norm", 5)])


def test_model_without_tensors_is_refused() -> None:
    with pytest.raises(UserError, match="no trainable tensors"):
        make_layout([])


@pytest.mark.parametrize(
    ("layout", "fault"),
    [
        (Layout((), "x"), "a layout of 0 tensors"),
        (Layout((spec("a", 0),), "x"), "expected up to 8 positive sizes"),
        (Layout((spec("a", *[1] * (DIMENSIONS_MAX + 1)),), "x"), "expected up to 8 positive sizes"),
        (Layout((spec("a", 1),), "x"), "claims fingerprint x"),
    ],
)
def test_layout_of_a_peer_is_checked(layout: Layout, fault: str) -> None:
    check_layout(make_layout(MODEL))
    with pytest.raises(PeerError, match=fault):
        check_layout(layout)


def test_first_difference_names_the_tensor() -> None:
    ours = make_layout(MODEL)
    assert first_difference(ours, make_layout(MODEL)) is None
    longer = make_layout([*MODEL, spec("zzz", 1)])
    assert first_difference(ours, longer) == "tensor 'zzz' is not expected"
    assert first_difference(longer, ours) == "tensor 'zzz' is missing"
    other = make_layout([msgspec.structs.replace(each, shape=(9,)) if each.name == "norm" else each for each in MODEL])
    assert first_difference(ours, other) == "tensor 'norm': expected shape [4], found [9]"
    renamed = make_layout([spec("decoder.layers.0.mlp.bias", 1), *MODEL[1:]])
    assert first_difference(ours, renamed) == (
        "expected tensor 'decoder.layers.0.mlp.weight', found 'decoder.layers.0.mlp.bias'"
    )


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("embedding.word_embeddings.weight", "avg"),
        ("model.embed_tokens.weight", "avg"),
        ("output_layer.weight", "avg"),
        ("lm_head.weight", "avg"),
        ("decoder.layers.0.self_attention.linear_qkv.weight", "rda"),
        ("decoder.final_layernorm.weight", "rda"),
    ],
)
def test_embeddings_and_output_heads_are_averaged(name: str, rule: str) -> None:
    assert merge_rule_of(name) == rule
