"""Boxes: a flat range as boxes, and whether those of all ranks tile the layout."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_diloco.core.layout.boxes import Box, flat_range_boxes, tiling_fault
from swift_diloco.core.layout.tensors import Index, Layout, make_layout
from tests.core.layout.models import cells, cut_models, shapes, spec


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
