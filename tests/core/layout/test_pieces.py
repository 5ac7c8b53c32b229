"""Pieces: what a range of a rank's stream is of the model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.pieces import PieceMap, Span
from swift_diloco.core.layout.tensors import Index, Layout, make_layout
from tests.core.layout.models import cells, cut_models, spec


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


def test_stream_goes_through_the_boxes_in_their_order_and_not_through_other_fragments() -> None:
    layout = make_layout([spec("a", 2, 3), spec("b", 4), spec("c", 2)])
    plan = plan_fragments(layout, 3, "binpack")
    pieces = PieceMap(layout, plan, [Box(0, (1, 0), (1, 3)), Box(1, (2,), (2,)), Box(0, (0, 1), (1, 2))])
    of = {tensor: fragment for fragment, group in enumerate(plan.fragments) for tensor in group}
    assert [pieces.elements(of[tensor]) for tensor in range(3)] == [5, 2, 0]
    assert pieces.spans(of[0], 1, 4) == [Span(0, Box(0, (0, 2), (1, 1))), Span(1, Box(0, (1, 0), (1, 2)))]
    assert pieces.spans(of[2], 0, 0) == []
