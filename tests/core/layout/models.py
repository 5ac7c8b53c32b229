"""Models, cells and cuts of the layout's tests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from swift_diloco.core.layout.boxes import Box, flat_range_boxes, tiling_fault
from swift_diloco.core.layout.tensors import Index, Layout, TensorSpec, make_layout, merge_rule_of

shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


def spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, merge_rule_of(name))


LAYERS = [spec(f"decoder.layers.{i}.mlp.weight", 4, 10 + i) for i in range(12)]
MODEL = [*LAYERS, spec("embedding.word_embeddings.weight", 30, 4), spec("output_layer.weight", 30, 4), spec("norm", 4)]


def cells(start: Index, shape: Index) -> list[Index]:
    """The indices in a box, row-major."""
    return [tuple(s + i for s, i in zip(start, index, strict=True)) for index in np.ndindex(*shape)]


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
    assert tiling_fault(layout, [box for rank in ranks for box in rank]) is None
    return layout, ranks
