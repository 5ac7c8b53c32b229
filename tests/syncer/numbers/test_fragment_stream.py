"""Array copies between a rank's stream and a fragment's flat values, against plain indexing of whole tensors."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from swift_diloco.core.layout.boxes import Box, flat_range_boxes
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout, TensorSpec, make_layout
from syncer.numbers.fragment_stream import FragmentStream, flat_index, is_one_run

LAYOUT = make_layout([TensorSpec("a", (6, 8), "rda"), TensorSpec("b", (5,), "rda"), TensorSpec("c", (3, 2, 4), "rda")])
PLAN = FragmentPlan(((0, 2), (1,)))
FLAT = np.arange(72, dtype=np.float32)
"""Fragment 0: tensor a is 0 to 47, tensor c is 48 to 71."""


def stream(*boxes: Box) -> FragmentStream:
    return FragmentStream(PieceMap(LAYOUT, PLAN, boxes), 0)


def gathered(of: FragmentStream, begin: int, end: int) -> list[float]:
    out = np.empty(end - begin, np.float32)
    of.gather(FLAT, begin, out)
    return [float(value) for value in out]


def test_whole_tensors_are_one_run() -> None:
    everything = stream(Box(0, (0, 0), (6, 8)), Box(2, (0, 0, 0), (3, 2, 4)))
    assert everything.elements == 72
    assert everything.contiguous(0, 72) == slice(0, 72)
    assert everything.contiguous(47, 49) == slice(47, 49)
    assert gathered(everything, 40, 60) == list(range(40, 60))


def test_rows_are_one_run_and_columns_are_not() -> None:
    rows = stream(Box(0, (2, 0), (3, 8)))
    assert rows.contiguous(1, 20) == slice(17, 36)
    columns = stream(Box(0, (0, 4), (6, 4)))
    assert columns.contiguous(0, 24) is None
    assert columns.contiguous(5, 8) == slice(13, 16)
    assert gathered(columns, 2, 9) == [6, 7, 12, 13, 14, 15, 20]


def test_neighbouring_boxes_are_one_run_and_others_are_not() -> None:
    assert stream(Box(0, (5, 0), (1, 8)), Box(2, (0, 0, 0), (1, 2, 4))).contiguous(0, 16) == slice(40, 56)
    assert stream(Box(0, (4, 0), (1, 8)), Box(2, (0, 0, 0), (1, 2, 4))).contiguous(0, 16) is None


def test_scatter_writes_its_own_places_only() -> None:
    flat = np.zeros(72, np.float32)
    stream(Box(0, (0, 4), (2, 4)), Box(2, (1, 0, 1), (1, 2, 2))).scatter(np.arange(1, 13, dtype=np.float32), 0, flat)
    written = {int(i): float(flat[i]) for i in np.flatnonzero(flat)}
    assert written == {4: 1, 5: 2, 6: 3, 7: 4, 12: 5, 13: 6, 14: 7, 15: 8, 57: 9, 58: 10, 61: 11, 62: 12}


def test_rank_that_owns_nothing_of_the_fragment_has_an_empty_stream() -> None:
    nothing = stream(Box(1, (0,), (5,)))
    assert nothing.elements == 0 and nothing.contiguous(0, 0) is None
    assert gathered(nothing, 0, 0) == []


def test_range_outside_the_stream_is_our_bug() -> None:
    for each in (stream(Box(0, (0, 0), (6, 8))), stream(Box(0, (0, 0), (6, 4)))):
        with pytest.raises(ValueError, match="is not inside a stream of"):
            each.contiguous(0, 49)


@pytest.mark.parametrize(
    ("shape", "box", "expected"),
    [
        ((4, 5), Box(0, (1, 0), (2, 5)), True),
        ((4, 5), Box(0, (1, 2), (1, 3)), True),
        ((4, 5), Box(0, (0, 2), (4, 1)), False),
        ((4, 1), Box(0, (1, 0), (3, 1)), True),
        ((2, 3, 4), Box(0, (1, 1, 0), (1, 2, 4)), True),
        ((2, 3, 4), Box(0, (0, 1, 0), (2, 2, 4)), False),
        ((), Box(0, (), ()), True),
    ],
)
def test_one_run_is_recognised(shape: tuple[int, ...], box: Box, expected: bool) -> None:
    grid = np.arange(prod(shape)).reshape(shape)
    inside = grid[tuple(slice(s, s + n) for s, n in zip(box.start, box.shape, strict=True))].ravel()
    assert bool(np.all(np.diff(inside) == 1)) is expected
    assert is_one_run(shape, box) is expected
    assert flat_index(shape, box.start) == inside[0]


@st.composite
def owned(draw: st.DrawFn) -> tuple[Layout, list[Box]]:
    """A layout of one fragment and some of its boxes: random flat ranges of its tensors."""
    shapes = draw(st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=4))
    layout = make_layout([TensorSpec(f"t{i}", shape, "rda") for i, shape in enumerate(shapes)])
    boxes = []
    for i, spec in enumerate(layout.tensors):
        begin = draw(st.integers(0, spec.elements))
        end = draw(st.integers(begin, spec.elements))
        boxes += [Box(i, *each) for each in flat_range_boxes(spec.shape, begin, end)]
    return layout, boxes


def reference(layout: Layout, boxes: list[Box], flat: NDArray[np.float32]) -> NDArray[np.float32]:
    parts, offset = [np.empty(0, np.float32)], 0
    for i, spec in enumerate(layout.tensors):
        tensor = flat[offset : offset + spec.elements].reshape(spec.shape)
        for box in sorted(boxes):
            if box.tensor == i:
                cut = tuple(slice(s, s + n) for s, n in zip(box.start, box.shape, strict=True))
                parts.append(tensor[cut].ravel())
        offset += spec.elements
    return np.concatenate(parts)


@given(owned(), st.data())
@settings(deadline=None, max_examples=20)
def test_gather_is_the_reference_and_scatter_is_its_inverse(
    model: tuple[Layout, list[Box]], data: st.DataObject
) -> None:
    layout, boxes = model
    plan = FragmentPlan((tuple(range(len(layout.tensors))),))
    each = FragmentStream(PieceMap(layout, plan, boxes), 0)
    flat = np.arange(layout.elements, dtype=np.float32)
    expected = reference(layout, boxes, flat)
    assert each.elements == expected.size
    step = data.draw(st.integers(1, max(1, each.elements)))
    found, back = np.empty(each.elements, np.float32), np.full(layout.elements, -1, np.float32)
    for begin in range(0, each.elements, step):
        part = found[begin : begin + step]
        each.gather(flat, begin, part)
        each.scatter(part, begin, back)
    np.testing.assert_array_equal(found, expected)
    owns = np.isin(flat, expected)
    np.testing.assert_array_equal(back, np.where(owns, flat, -1))
