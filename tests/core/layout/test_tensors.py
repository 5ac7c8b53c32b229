"""The global layout: one order and fingerprint, fragments, boxes that tile, spans of streams."""

from __future__ import annotations

import re
from itertools import pairwise
from math import prod

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_diloco.core.errors import PeerError, UserError
from swift_diloco.core.layout.boxes import Box, flat_range_boxes, tiling_fault
from swift_diloco.core.layout.fragments import FragmentPlan, fragment_elements, plan_fragments, tensor_offsets
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import (
    DIMENSIONS_MAX,
    Index,
    Layout,
    TensorSpec,
    check_layout,
    first_difference,
    make_layout,
    merge_rule_of,
    natural_key,
)

shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


def spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, merge_rule_of(name))


LAYERS = [spec(f"decoder.layers.{i}.mlp.weight", 4, 10 + i) for i in range(12)]
MODEL = [*LAYERS, spec("embedding.word_embeddings.weight", 30, 4), spec("output_layer.weight", 30, 4), spec("norm", 4)]


def cells(start: Index, shape: Index) -> list[Index]:
    """The indices in a box, row-major."""
    return [tuple(s + i for s, i in zip(start, index, strict=True)) for index in np.ndindex(*shape)]


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


# ---------------------------------------------------------------------------------------------------------------------
# Fragments
# ---------------------------------------------------------------------------------------------------------------------


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


def test_tensors_of_a_fragment_lie_one_after_the_other() -> None:
    layout = make_layout([spec("a", 2, 3), spec("b", 4), spec("c", 5)])
    assert tensor_offsets(layout, FragmentPlan(((0, 2), (1,))), 0) == {0: 0, 2: 6}


# ---------------------------------------------------------------------------------------------------------------------
# Boxes
# ---------------------------------------------------------------------------------------------------------------------


@given(shapes, st.data())
@settings(deadline=None, max_examples=50)
def test_boxes_of_a_flat_range_are_its_elements_in_order(shape: Index, data: st.DataObject) -> None:
    size = prod(shape)
    begin = data.draw(st.integers(0, size))
    end = data.draw(st.integers(begin, size))
    boxes = flat_range_boxes(shape, begin, end)
    found = [index for start, extent in boxes for index in cells(start, extent)]
    assert found == list(np.ndindex(*shape))[begin:end]
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_flat_range_outside_the_tensor_is_our_bug() -> None:
    with pytest.raises(ValueError, match=r"range \[2, 7\) is not inside a tensor of 6 elements"):
        flat_range_boxes((2, 3), 2, 7)


@st.composite
def cut_models(draw: st.DrawFn) -> tuple[Layout, list[list[Box]]]:
    """A layout and the boxes of a few ranks that tile it: each tensor cut into flat ranges, dealt out at random."""
    tensors = draw(st.lists(shapes, min_size=1, max_size=4))
    layout = make_layout([spec(f"t{i}", *shape) for i, shape in enumerate(tensors)])
    ranks: list[list[Box]] = [[] for _ in range(draw(st.integers(1, 3)))]
    for i, each in enumerate(layout.tensors):
        cuts = sorted({0, each.elements, *draw(st.lists(st.integers(0, each.elements), max_size=3))})
        for begin, end in pairwise(cuts):
            owner = draw(st.integers(0, len(ranks) - 1))
            ranks[owner] += [Box(i, start, extent) for start, extent in flat_range_boxes(each.shape, begin, end)]
    return layout, ranks


@given(cut_models())
@settings(deadline=None, max_examples=30)
def test_tiling_is_recognised_and_any_missing_or_double_box_found(model: tuple[Layout, list[list[Box]]]) -> None:
    layout, ranks = model
    boxes = [box for rank in ranks for box in rank]
    assert tiling_fault(layout, boxes) is None
    for i, box in enumerate(boxes):
        name = layout.tensors[box.tensor].name
        missing = tiling_fault(layout, boxes[:i] + boxes[i + 1 :])
        assert missing is not None and f"tensor {name!r}: nobody owns" in missing
        double = tiling_fault(layout, [*boxes, box])
        assert double == f"tensor {name!r}: box {box} overlaps another one"


@pytest.mark.parametrize(
    ("box", "fault"),
    [
        (Box(1, (0,), (1,)), "is of tensor number 1; the layout has 1"),
        (Box(-1, (0,), (1,)), "is of tensor number -1"),
        (Box(0, (0, 0), (2, 4)), r"box \[0:2, 0:4\] is not inside shape \[2, 3\]"),
        (Box(0, (-1, 0), (1, 3)), "is not inside"),
        (Box(0, (0, 0), (0, 3)), "is not inside"),
        (Box(0, (0,), (6,)), "is not inside"),
        (Box(0, (0,), (2, 3)), r"box \[start \[0\], shape \[2, 3\]\] is not inside"),
    ],
)
def test_box_outside_the_layout_is_told(box: Box, fault: str) -> None:
    found = tiling_fault(make_layout([spec("a", 2, 3)]), [box])
    assert found is not None
    assert re.search(fault, found)


@given(cut_models(), st.data())
@settings(deadline=None, max_examples=30)
def test_spans_of_a_stream_range_are_its_elements_in_order(
    model: tuple[Layout, list[list[Box]]], data: st.DataObject
) -> None:
    layout, ranks = model
    count = data.draw(st.integers(1, len(layout.tensors)))
    plan = plan_fragments(layout, count, "binpack")
    pieces = PieceMap(layout, plan, data.draw(st.permutations(ranks[0])))
    for fragment in range(count):
        stream = [(b.tensor, i) for b in pieces.fragment_boxes(fragment) for i in cells(b.start, b.shape)]
        assert len(stream) == pieces.elements(fragment)
        begin = data.draw(st.integers(0, len(stream)))
        end = data.draw(st.integers(begin, len(stream)))
        found: list[tuple[int, Index]] = []
        for span in pieces.spans(fragment, begin, end):
            assert span.offset == len(found)
            found += [(span.box.tensor, i) for i in cells(span.box.start, span.box.shape)]
        assert found == stream[begin:end]


def test_stream_range_outside_the_stream_is_our_bug() -> None:
    layout = make_layout([spec("a", 2, 3)])
    pieces = PieceMap(layout, plan_fragments(layout, 1, "binpack"), [Box(0, (0, 0), (1, 3))])
    with pytest.raises(ValueError, match=r"range \[0, 4\) is not inside a stream of 3 elements"):
        pieces.spans(0, 0, 4)
