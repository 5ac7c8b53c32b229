"""Fragments: every tensor in one of them, balanced or in turn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_diloco.core.errors import UserError
from swift_diloco.core.layout.fragments import (
    FragmentPlan,
    fragment_elements,
    layer_of,
    plan_fragments,
    tensor_offsets,
)
from swift_diloco.core.layout.tensors import make_layout
from tests.core.layout.models import LAYERS, MODEL, spec


@given(st.integers(1, 15), st.sampled_from(["binpack", "strided"]))
@settings(deadline=None, max_examples=30)
def test_every_tensor_is_in_exactly_one_fragment_and_none_is_empty(count: int, how: str) -> None:
    layout = make_layout(MODEL)
    if how == "strided" and count > len(LAYERS):
        with pytest.raises(UserError, match="use at most 12"):
            plan_fragments(layout, count, "strided")
        return
    plan = plan_fragments(layout, count, how)  # type: ignore[arg-type]
    assert len(plan) == count and all(plan.fragments)
    assert sorted(tensor for group in plan.fragments for tensor in group) == list(range(len(MODEL)))
    assert sum(fragment_elements(layout, plan, f) for f in range(count)) == layout.elements


def test_number_of_fragments_is_chosen_up_to_eight() -> None:
    assert len(plan_fragments(make_layout(MODEL), 0, "binpack")) == 8
    assert len(plan_fragments(make_layout(MODEL[:3]), 0, "binpack")) == 3
    assert len(plan_fragments(make_layout([spec("norm", 4)]), 0, "strided")) == 1


def test_binpack_balances_elements() -> None:
    layout = make_layout([spec("a", 7), spec("b", 5), spec("c", 4), spec("d", 3), spec("e", 1)])
    plan = plan_fragments(layout, 2, "binpack")
    assert plan.fragments == ((0, 3), (1, 2, 4))


def test_strided_deals_layers_out_in_turn_with_the_ends_at_the_ends() -> None:
    layout = make_layout(MODEL)
    plan = plan_fragments(layout, 3, "strided")
    names = [{layout.tensors[i].name for i in group} for group in plan.fragments]
    for i, each in enumerate(LAYERS):
        assert each.name in names[i % 3]
    assert "embedding.word_embeddings.weight" in names[0]
    assert {"output_layer.weight", "norm"} <= names[2]


def test_tensors_of_a_fragment_lie_one_after_the_other() -> None:
    layout = make_layout([spec("a", 2, 3), spec("b", 4), spec("c", 5)])
    assert tensor_offsets(layout, FragmentPlan(((0, 2), (1,))), 0) == {0: 0, 2: 6}


@pytest.mark.parametrize(
    ("name", "layer"),
    [("decoder.layers.3.mlp.weight", 3), ("layers.12.a", 12), ("decoder.players.3.a", None), ("norm", None)],
)
def test_layer_of_a_tensor_is_the_number_in_its_name(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer
