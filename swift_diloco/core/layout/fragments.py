"""Fragments: how the tensors of a layout are grouped, and where each lies in its group."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from swift_diloco.core.errors import UserError
from swift_diloco.core.layout.tensors import Layout, is_embedding

FRAGMENTS_AUTO_MAX = 8
"""Fragments when the user does not say: more would make rounds short of work for small models, fewer would
make bursts."""

Fragmenting = Literal["binpack", "strided"]


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
    fragment i mod P (the strided pattern of Streaming DiLoCo, arXiv 2501.18512), what comes before the layers into the
    first and what comes after into the last. Raises `UserError` when there are more fragments than tensors or layers.
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
