"""Each element of each tensor has one owner."""

from __future__ import annotations

import pytest

from swift_diloco.core.layout.boxes import tiling_fault
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.trainers.hf.shares import share, share_boxes

LAYOUT = make_layout(
    [
        TensorSpec("a.weight", (24, 8), "rda"),
        TensorSpec("b.bias", (5,), "rda"),
        TensorSpec("c.weight", (3, 7, 2), "rda"),
        TensorSpec("d.scale", (), "rda"),
        TensorSpec("e.weight", (1, 40), "rda"),
    ]
)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 64])
def test_shares_of_all_ranks_tile_the_layout_exactly_once(ranks: int) -> None:
    boxes = [box for rank in range(ranks) for box in share_boxes(LAYOUT, rank, ranks)]
    assert tiling_fault(LAYOUT, boxes) is None


def test_shares_are_even_and_of_whole_rows_where_there_are_enough() -> None:
    assert [share((24, 8), rank, 5) for rank in range(5)] == [(0, 32), (32, 72), (72, 112), (112, 152), (152, 192)]
    assert [share((1, 40), rank, 4) for rank in range(4)] == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert [len(share_boxes(LAYOUT, rank, 2)) for rank in range(2)] == [5 - 1, 5]


def test_streams_are_in_the_order_of_the_flat_ranges() -> None:
    for rank in range(7):
        boxes = share_boxes(LAYOUT, rank, 7)
        assert boxes == sorted(boxes)
