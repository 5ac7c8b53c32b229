"""Which elements of each tensor a data parallel rank owns.

Every rank of a DDP island holds the whole model, so any split is right; an even one lets each rank keep, push and fetch
its own share. Pure integers. Invariant: the shares of all ranks cover each tensor exactly once, in rank order.
"""

from __future__ import annotations

from swift_diloco.core.layout.boxes import Box, flat_range_boxes
from swift_diloco.core.layout.tensors import Index, Layout


def share(shape: Index, rank: int, ranks: int) -> tuple[int, int]:
    """The flat range [begin, end) of a tensor that `rank` owns: whole rows where there are enough of them."""
    rows = shape[0] if shape else 1
    elements = 1
    for size in shape:
        elements *= size
    unit = elements // rows if rows >= ranks else 1
    units = elements // unit
    return units * rank // ranks * unit, units * (rank + 1) // ranks * unit


def share_boxes(layout: Layout, rank: int, ranks: int) -> list[Box]:
    """The boxes of `rank`'s shares of all tensors."""
    boxes = []
    for number, spec in enumerate(layout.tensors):
        begin, end = share(spec.shape, rank, ranks)
        boxes += [Box(number, start, shape) for start, shape in flat_range_boxes(spec.shape, begin, end)]
    return boxes
