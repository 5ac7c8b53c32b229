"""Flat ranges of local parameters become the right boxes of global tensors, each element once."""

from __future__ import annotations

from math import prod

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.layout.boxes import Box, tiling_fault
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.trainers.megatron.parts import Cut, Part, check_parts, cuts


def part(begin: int, name: str, shape: tuple[int, ...], start: tuple[int, ...], local: tuple[int, ...]) -> Part:
    return Part(begin, begin + prod(local), TensorSpec(name, shape, "rda"), start, local, main=True, main_over_dp=True)


def gate_and_up(rank: int, ranks: int, rows: int = 6, columns: int = 4) -> list[Part]:
    """A fused gate and up projection of `rows` rows each, cut over tensor parallel ranks: half gate, half up."""
    mine = rows // ranks
    return [
        part(0, "gate", (rows, columns), (rank * mine, 0), (mine, columns)),
        part(mine * columns, "up", (rows, columns), (rank * mine, 0), (mine, columns)),
    ]


def test_range_over_the_seam_of_gate_and_up_is_cut_there() -> None:
    parts = gate_and_up(rank=1, ranks=2)
    found = [list(cuts(p, 10, 14)) for p in parts]
    assert found == [[Cut(10, (5, 2), (1, 2))], [Cut(12, (3, 0), (1, 2))]]


def test_range_outside_a_part_gives_nothing() -> None:
    gate, up = gate_and_up(rank=0, ranks=2)
    assert list(cuts(gate, 12, 24)) == []
    assert list(cuts(up, 0, 12)) == []
    assert list(cuts(gate, 5, 5)) == []


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("split", [1, 5, 7, 11, 13])
def test_every_split_of_a_fused_parameter_tiles_gate_and_up_exactly_once(ranks: int, split: int) -> None:
    layout = make_layout([p.spec for p in gate_and_up(0, ranks)])
    boxes = []
    for rank in range(ranks):
        parts = gate_and_up(rank, ranks)
        elements = parts[-1].end
        for begin in range(0, elements, split):
            for p in parts:
                boxes += [Box(layout.index(p.spec.name), c.start, c.shape) for c in cuts(p, begin, begin + split)]
    assert tiling_fault(layout, boxes) is None


def test_cuts_are_contiguous_runs_of_the_parameter_in_order() -> None:
    p = part(8, "t", (9, 3, 4), (2, 0, 0), (5, 3, 4))
    runs = list(cuts(p, 8 + 5, 8 + 50))
    position = 13
    for run in runs:
        assert run.begin == position
        position += run.elements
    assert position == 58


def test_rows_added_to_the_vocabulary_belong_to_nobody() -> None:
    # 5 rows of vocabulary over 2 ranks of 3 rows: the last row of the second rank is padding.
    last = part(0, "word_embeddings", (5, 2), (3, 0), (3, 2))
    assert list(cuts(last, 0, 6)) == [Cut(0, (3, 0), (2, 2))]
    assert list(cuts(last, 3, 6)) == [Cut(3, (4, 1), (1, 1))]
    assert list(cuts(last, 4, 6)) == []


def test_stacked_tensor_keeps_its_prepended_axis() -> None:
    expert = part(4, "experts", (3, 2, 2), (1, 0, 0), (1, 2, 2))
    assert list(cuts(expert, 0, 8)) == [Cut(4, (1, 0, 0), (1, 2, 2))]


def test_scalar_is_one_box() -> None:
    scalar = part(0, "scale", (), (), ())
    assert list(cuts(scalar, 0, 1)) == [Cut(0, (), ())]


def test_parts_that_leave_a_gap_are_refused_with_the_parameter() -> None:
    gate, up = gate_and_up(rank=0, ranks=1)
    check_parts("fc1", 48, [gate, up])
    with pytest.raises(UserError, match="'fc1' has 48 elements, of which .* the first 24"):
        check_parts("fc1", 48, [gate])
    with pytest.raises(UserError, match="'fc1' has 48 elements, of which .* the first 0"):
        check_parts("fc1", 48, [up])


def test_parts_that_overlap_are_refused() -> None:
    gate, up = gate_and_up(rank=0, ranks=1)
    with pytest.raises(UserError, match="the first 24"):
        check_parts("fc1", 48, [gate, gate, up])
