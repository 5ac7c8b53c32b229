"""Copies of replicated values are planned from boxes alone and arrive bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from swift_diloco.core.errors import InternalError
from swift_diloco.core.layout.boxes import Box, overlap
from swift_diloco.island.ranks.torch_group import TorchGroup
from swift_diloco.trainers.megatron.replicas import (
    Announcement,
    Replicator,
    Segment,
    Transfer,
    agree_transfers,
    plan_transfers,
    view_of,
)
from tests.trainers.megatron.ranks import run_ranks


def test_overlap_is_the_common_box_or_nothing() -> None:
    a = Box(0, (0, 0), (4, 3))
    assert overlap(a, Box(0, (2, 1), (4, 4))) == Box(0, (2, 1), (2, 2))
    assert overlap(a, Box(0, (4, 0), (1, 3))) is None
    assert overlap(a, Box(1, (0, 0), (4, 3))) is None


def test_copy_that_spans_two_owners_is_filled_by_both() -> None:
    # A tied embedding of 4 rows: owned in halves by ranks 0 and 1, held in other halves by ranks 2 and 3.
    announced = [
        Announcement((Box(0, (0, 0), (3, 2)),), ()),
        Announcement((Box(0, (3, 0), (1, 2)),), ()),
        Announcement((), (Box(0, (0, 0), (2, 2)),)),
        Announcement((), (Box(0, (2, 0), (2, 2)),)),
    ]
    assert plan_transfers(announced) == [
        Transfer(0, 2, Box(0, (0, 0), (2, 2))),
        Transfer(0, 3, Box(0, (2, 0), (1, 2))),
        Transfer(1, 3, Box(0, (3, 0), (1, 2))),
    ]


def test_copy_without_an_owner_is_our_error() -> None:
    announced = [Announcement((Box(0, (0,), (2,)),), ()), Announcement((), (Box(0, (1,), (2,)),))]
    with pytest.raises(InternalError, match="rank 1 holds a copy of box"):
        plan_transfers(announced)


def test_view_of_a_box_inside_a_segment_shares_its_memory() -> None:
    values = torch.arange(12.0)
    view = view_of(Segment(Box(7, (2, 1), (4, 3)), values), Box(7, (3, 2), (2, 2)))
    assert view.tolist() == [[4.0, 5.0], [7.0, 8.0]]
    view.zero_()
    assert values.tolist() == [0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 6.0, 0.0, 0.0, 9.0, 10.0, 11.0]


def _exchange(rank: int) -> tuple[int, list[float], list[float]]:
    """Rank 0 owns tensor 0, which rank 1 copies; tensor 1 the other way round; nobody copies tensor 2."""
    group = TorchGroup(timeout_s=30)
    row = [Segment(Box(0, (i, 0), (1, 3)), torch.full((3,), 10.0 * rank + i)) for i in range(2)]
    other = [Segment(Box(1, (0,), (2,)), torch.tensor([100.0 + rank, 200.0 + rank]))]
    alone = [Segment(Box(2, (rank,), (1,)), torch.tensor([float(rank)]))]
    owned, copies = ([*row, *alone], other) if rank == 0 else ([*other, *alone], row)
    transfers = agree_transfers([s.box for s in owned], [s.box for s in copies], group)
    replicator = Replicator(transfers, rank, owned, copies)
    replicator.exchange(frozenset({2}))
    unchanged = torch.cat([s.values for s in row + other]).tolist()
    replicator.exchange(frozenset({0, 1}))
    return len(transfers), unchanged, torch.cat([s.values for s in row + other]).tolist()


@pytest.mark.net
def test_values_of_owners_reach_the_copies_of_the_tensors_asked_for(tmp_path: Path) -> None:
    before = [[0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 100.0, 200.0], [10.0, 10.0, 10.0, 11.0, 11.0, 11.0, 101.0, 201.0]]
    after = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 101.0, 201.0]
    assert run_ranks(2, tmp_path, _exchange) == [(3, before[0], after), (3, before[1], after)]
