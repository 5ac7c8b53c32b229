"""The global layout: which tensors the model has, how they are grouped into fragments, and which boxes of them a rank
owns.

Everything here is geometry on plain integers: no arrays, no bytes, no trainer. The same functions serve the islands
(which
boxes do I own) and the syncer (do the boxes of an island tile the model exactly once).

Invariants:
* the fingerprint depends on names, shapes and merge rules alone, never on how an island cuts the model over its ranks;
* the boxes of one rank are kept in canonical order (tensor index, then start), and a rank's *stream* of a fragment is
the
  row-major elements of its boxes of that fragment, one after the other in that order;
* the flat FP32 values of a fragment are its tensors, whole and row-major, in layout order.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import prod
from typing import Annotated, Literal

import msgspec
import xxhash

from swift_diloco.core.errors import PeerError, UserError

TENSORS_MAX = 1_000_000
"""Most tensors in one layout: ten times the largest mixture-of-experts model known, and a Hello that still fits its
limit."""

RANK_BOXES_MAX = 4_000_000
"""Most boxes one rank may announce: a flat range of a tensor needs a handful, and a rank owns at most TENSORS_MAX
ranges."""

DIMENSIONS_MAX = 8
"""Most dimensions of a tensor; Megatron's own never have more than 4."""

FRAGMENTS_AUTO_MAX = 8
"""Fragments when the user does not say: more would make rounds short of work for small models, fewer would make
bursts."""

MergeRuleName = Literal["avg", "rda"]
Fragmenting = Literal["binpack", "strided"]
Index = Annotated[tuple[int, ...], msgspec.Meta(max_length=DIMENSIONS_MAX)]
"""A limit in the type is judged while a message is read, before anything is built of what is too long."""


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One global tensor: its name in Megatron's distributed checkpoint, its global shape (elements) and its merge
    rule."""

    name: str
    shape: Index
    rule: MergeRuleName

    @property
    def elements(self) -> int:
        return prod(self.shape)


class Box(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A part of one global tensor: the elements `start[d] <= i[d] < start[d] + shape[d]` of tensor number `tensor`."""

    tensor: int
    start: Index
    shape: Index

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        if len(self.start) != len(self.shape):
            return f"[start {list(self.start)}, shape {list(self.shape)}]"
        ranges = ", ".join(f"{s}:{s + n}" for s, n in zip(self.start, self.shape, strict=True))
        return f"[{ranges}]"


class Layout(msgspec.Struct, frozen=True):
    """All global tensors in canonical order. Build one with `make_layout`."""

    tensors: Annotated[tuple[TensorSpec, ...], msgspec.Meta(max_length=TENSORS_MAX)]
    fingerprint: str

    @property
    def elements(self) -> int:
        return sum(spec.elements for spec in self.tensors)

    def index(self, name: str) -> int:
        """Number of the tensor called `name`; `KeyError` if the layout has none."""
        for i, spec in enumerate(self.tensors):
            if spec.name == name:
                return i
        raise KeyError(name)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts `layers.2` before `layers.10`."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def fingerprint_of(tensors: Sequence[TensorSpec]) -> str:
    """xxh3-128 (hex) of the tensors' names, shapes and rules in order."""
    return xxhash.xxh3_128_hexdigest(msgspec.msgpack.encode(tuple(tensors)))


def make_layout(specs: Iterable[TensorSpec]) -> Layout:
    """The canonical layout of `specs` in any order; repeated equal specs (replicas, ranks that see the same tensor)
    count once.

    Raises `UserError` when two specs of one name differ, or the layout is empty or too large.
    """
    by_name: dict[str, TensorSpec] = {}
    for spec in specs:
        known = by_name.setdefault(spec.name, spec)
        if known != spec:
            raise UserError(
                f"tensor {spec.name!r} has shape {list(known.shape)} on one rank and {list(spec.shape)} on another; "
                "every rank of an island must hold the same model"
            )
    if not by_name:
        raise UserError("the model has no trainable tensors; expected at least one; check which parameters are frozen")
    if len(by_name) > TENSORS_MAX:
        raise UserError(f"the model has {len(by_name)} tensors; at most {TENSORS_MAX} are supported")
    tensors = tuple(by_name[name] for name in sorted(by_name, key=natural_key))
    return Layout(tensors, fingerprint_of(tensors))


def check_layout(layout: Layout) -> None:
    """Raise `PeerError` unless a layout received from a peer is well formed and has the fingerprint it claims."""
    if not 0 < len(layout.tensors) <= TENSORS_MAX:
        raise PeerError(f"a layout of {len(layout.tensors)} tensors; expected 1 to {TENSORS_MAX}")
    for spec in layout.tensors:
        if len(spec.shape) > DIMENSIONS_MAX or any(n <= 0 for n in spec.shape):
            raise PeerError(
                f"tensor {spec.name!r} has shape {list(spec.shape)}; expected up to {DIMENSIONS_MAX} positive sizes"
            )
    if fingerprint_of(layout.tensors) != layout.fingerprint:
        raise PeerError(f"a layout that claims fingerprint {layout.fingerprint} does not have it")


def first_difference(ours: Layout, theirs: Layout) -> str | None:
    """In words, the first tensor in which two layouts differ; None when they are equal."""
    for mine, other in zip(ours.tensors, theirs.tensors, strict=False):
        if mine.name != other.name:
            return f"expected tensor {mine.name!r}, found {other.name!r}"
        if mine.shape != other.shape:
            return f"tensor {mine.name!r}: expected shape {list(mine.shape)}, found {list(other.shape)}"
        if mine.rule != other.rule:
            return f"tensor {mine.name!r}: expected merge rule {mine.rule}, found {other.rule}"
    if len(ours.tensors) == len(theirs.tensors):
        return None
    longer, where = (ours, "missing") if len(ours.tensors) > len(theirs.tensors) else (theirs, "not expected")
    return f"tensor {longer.tensors[min(len(ours.tensors), len(theirs.tensors))].name!r} is {where}"


# ---------------------------------------------------------------------------------------------------------------------
# Fragments
# ---------------------------------------------------------------------------------------------------------------------


class FragmentPlan(msgspec.Struct, frozen=True):
    """Which tensors (by number, ascending) make up each fragment. Assigned by the syncer, the same for everybody."""

    fragments: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.fragments)


def layer_of(name: str) -> int | None:
    """The layer number in a tensor name such as `decoder.layers.3.mlp.linear_fc2.weight`; None outside the layers."""
    found = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    return int(found.group(1)) if found else None


def plan_fragments(layout: Layout, count: int, fragmenting: Fragmenting) -> FragmentPlan:
    """Group whole tensors into `count` fragments (0: chosen here, at most FRAGMENTS_AUTO_MAX and one per layer).

    `binpack` balances bytes: the largest tensor first, each into the emptiest fragment. `strided` puts layer i into
    fragment
    i mod P (the strided pattern of Streaming DiLoCo, arXiv 2501.18512), what comes before the layers into the first
    and what
    comes after into the last. Raises `UserError` when there are more fragments than tensors or layers.
    """
    layers = sorted({n for n in (layer_of(spec.name) for spec in layout.tensors) if n is not None})
    units = len(layers) if fragmenting == "strided" else len(layout.tensors)
    wanted = count or max(1, min(FRAGMENTS_AUTO_MAX, units, len(layers) or units))
    if wanted > max(1, units):
        what = "layers" if fragmenting == "strided" else "tensors"
        raise UserError(f"fragments is {wanted}, but the model has only {units} {what}; use at most {max(1, units)}")
    groups = _strided(layout, layers, wanted) if fragmenting == "strided" else _binpack(layout, wanted)
    return FragmentPlan(tuple(tuple(sorted(group)) for group in groups))


def _binpack(layout: Layout, count: int) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for i in sorted(range(len(layout.tensors)), key=lambda i: (-layout.tensors[i].elements, i)):
        emptiest = min(range(count), key=lambda g: (sizes[g], g))
        groups[emptiest].append(i)
        sizes[emptiest] += layout.tensors[i].elements
    return groups


def _strided(layout: Layout, layers: list[int], count: int) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in range(count)]
    for i, spec in enumerate(layout.tensors):
        layer = layer_of(spec.name)
        if layer is not None:
            groups[layers.index(layer) % count].append(i)
        else:
            groups[0 if is_embedding(spec.name) else -1].append(i)
    return groups


def is_embedding(name: str) -> bool:
    """Whether a tensor is an input embedding (token or position)."""
    return "embedding" in name or "embed_tokens" in name


def is_output_head(name: str) -> bool:
    """Whether a tensor is the output projection to the vocabulary."""
    return name.startswith("output_layer.") or ".output_layer." in name or "lm_head." in name


def merge_rule_of(name: str) -> MergeRuleName:
    """`avg` for embeddings and the output head, whose rows are touched by few tokens each; `rda` for everything
    else."""
    return "avg" if is_embedding(name) or is_output_head(name) else "rda"


# ---------------------------------------------------------------------------------------------------------------------
# Boxes
# ---------------------------------------------------------------------------------------------------------------------


def flat_range_boxes(shape: Index, begin: int, end: int) -> list[tuple[Index, Index]]:
    """The row-major flat range [begin, end) of a tensor of `shape`, as (start, shape) boxes in flat order.

    A range needs at most 2·ndim − 1 boxes: a ragged head, whole rows, a ragged tail, and the same again inside a row.
    """
    if not 0 <= begin <= end <= prod(shape):
        raise ValueError(f"range [{begin}, {end}) is not inside a tensor of {prod(shape)} elements")
    if begin == end:
        return []
    if not shape:
        return [((), ())]
    row = prod(shape[1:])
    first, last = begin // row, (end - 1) // row
    if first == last:
        inner = flat_range_boxes(shape[1:], begin - first * row, end - first * row)
        return [((first, *start), (1, *size)) for start, size in inner]
    boxes: list[tuple[Index, Index]] = []
    if begin % row:
        inner = flat_range_boxes(shape[1:], begin % row, row)
        boxes += [((first, *start), (1, *size)) for start, size in inner]
        first += 1
    whole = end // row
    if whole > first:
        boxes.append(((first, *(0 for _ in shape[1:])), (whole - first, *shape[1:])))
    if end % row:
        inner = flat_range_boxes(shape[1:], 0, end % row)
        boxes += [((whole, *start), (1, *size)) for start, size in inner]
    return boxes


def tiling_fault(layout: Layout, boxes: Iterable[Box]) -> str | None:
    """In words, the first reason why `boxes` do not cover every element of the layout exactly once; None when they
    do."""
    by_tensor: dict[int, list[Box]] = {}
    for box in boxes:
        if fault := box_fault(layout, box):
            return fault
        by_tensor.setdefault(box.tensor, []).append(box)
    for i, spec in enumerate(layout.tensors):
        rest = [Box(i, tuple(0 for _ in spec.shape), spec.shape)]
        for box in sorted(by_tensor.get(i, [])):
            left = [piece for region in rest for piece in _subtract(region, box)]
            if sum(r.elements for r in rest) - sum(r.elements for r in left) != box.elements:
                return f"tensor {spec.name!r}: box {box} overlaps another one"
            rest = left
        if rest:
            return f"tensor {spec.name!r}: nobody owns {min(rest)}"
    return None


def box_fault(layout: Layout, box: Box) -> str | None:
    """In words, why `box` is no box of the layout; None when it is one."""
    if not 0 <= box.tensor < len(layout.tensors):
        return f"box {box} is of tensor number {box.tensor}; the layout has {len(layout.tensors)}"
    spec = layout.tensors[box.tensor]
    inside = len(box.start) == len(box.shape) == len(spec.shape) and all(
        s >= 0 and n > 0 and s + n <= size for s, n, size in zip(box.start, box.shape, spec.shape, strict=True)
    )
    return None if inside else f"tensor {spec.name!r}: box {box} is not inside shape {list(spec.shape)}"


def _subtract(region: Box, hole: Box) -> list[Box]:
    """What of `region` lies outside `hole`, as disjoint boxes (slabs peeled off dimension by dimension)."""
    low = [max(a, b) for a, b in zip(region.start, hole.start, strict=True)]
    high = [min(a + n, b + m) for a, n, b, m in zip(region.start, region.shape, hole.start, hole.shape, strict=True)]
    if any(lo >= hi for lo, hi in zip(low, high, strict=True)):
        return [region]
    start, shape, pieces = list(region.start), list(region.shape), []
    for d in range(len(start)):
        end = start[d] + shape[d]
        if low[d] > start[d]:
            pieces.append(Box(region.tensor, tuple(start), (*shape[:d], low[d] - start[d], *shape[d + 1 :])))
        if high[d] < end:
            above = (*start[:d], high[d], *start[d + 1 :])
            pieces.append(Box(region.tensor, above, (*shape[:d], end - high[d], *shape[d + 1 :])))
        start[d], shape[d] = low[d], high[d] - low[d]
    return pieces


class Span(msgspec.Struct, frozen=True):
    """Consecutive elements of a rank's stream and the box of a global tensor that they are."""

    offset: int
    """First element in the stream, counted from the beginning of the requested range."""
    box: Box


class PieceMap:
    """Where each element of a rank's streams lies in the model. One per rank; pure, immutable after construction."""

    def __init__(self, layout: Layout, plan: FragmentPlan, boxes: Iterable[Box]) -> None:
        self.layout = layout
        self.plan = plan
        self.boxes = tuple(sorted(boxes))
        fragment_of = {tensor: f for f, group in enumerate(plan.fragments) for tensor in group}
        self._boxes: list[list[Box]] = [[] for _ in plan.fragments]
        for box in self.boxes:
            self._boxes[fragment_of[box.tensor]].append(box)
        self._ends: list[list[int]] = []
        for group in self._boxes:
            ends, total = [], 0
            for box in group:
                total += box.elements
                ends.append(total)
            self._ends.append(ends)

    def fragment_boxes(self, fragment: int) -> Sequence[Box]:
        """The rank's boxes of one fragment, in stream order."""
        return self._boxes[fragment]

    def elements(self, fragment: int) -> int:
        """Elements in the rank's stream of one fragment (0: the rank owns nothing of it)."""
        return self._ends[fragment][-1] if self._ends[fragment] else 0

    def spans(self, fragment: int, begin: int, end: int) -> list[Span]:
        """The stream range [begin, end) as boxes of global tensors, in stream order."""
        if not 0 <= begin <= end <= self.elements(fragment):
            raise ValueError(f"range [{begin}, {end}) is not inside a stream of {self.elements(fragment)} elements")
        spans: list[Span] = []
        ends, position = self._ends[fragment], begin
        i = bisect_right(ends, begin)
        while position < end:
            box = self._boxes[fragment][i]
            base = ends[i] - box.elements
            stop = min(end, ends[i])
            for start, shape in flat_range_boxes(box.shape, position - base, stop - base):
                moved = tuple(a + b for a, b in zip(box.start, start, strict=True))
                spans.append(Span(position - begin, Box(box.tensor, moved, shape)))
                position += prod(shape)
            i += 1
        return spans


def tensor_offsets(layout: Layout, plan: FragmentPlan, fragment: int) -> dict[int, int]:
    """Where each tensor of a fragment begins in the fragment's flat values (elements)."""
    offsets, total = {}, 0
    for tensor in plan.fragments[fragment]:
        offsets[tensor] = total
        total += layout.tensors[tensor].elements
    return offsets


def fragment_elements(layout: Layout, plan: FragmentPlan, fragment: int) -> int:
    """Elements in one fragment's flat values."""
    return sum(layout.tensors[tensor].elements for tensor in plan.fragments[fragment])
