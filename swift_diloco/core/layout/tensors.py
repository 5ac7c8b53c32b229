"""The global layout: which tensors the model has, how they are grouped into fragments, and which boxes of them
a rank owns.

Everything here is geometry on plain integers: no arrays, no bytes, no trainer. The same functions serve the islands
(which boxes do I own) and the syncer (do the boxes of an island tile the model exactly once).

Invariants:
* the fingerprint depends on names, shapes and merge rules alone, never on how an island cuts the model over its ranks;
* the boxes of one rank are kept in canonical order (tensor index, then start), and a rank's *stream* of a fragment is
  the row-major elements of its boxes of that fragment, one after the other in that order;
* the flat FP32 values of a fragment are its tensors, whole and row-major, in layout order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import Annotated, Literal

import msgspec
import xxhash

from swift_diloco.core.errors import PeerError, UserError

TENSORS_MAX = 1_000_000
"""Most tensors in one layout: ten times the largest mixture-of-experts model known, and a Hello that still
fits its limit."""

DIMENSIONS_MAX = 8
"""Most dimensions of a tensor; Megatron's own never have more than 4."""

MergeRuleName = Literal["avg", "rda"]
Index = Annotated[tuple[int, ...], msgspec.Meta(max_length=DIMENSIONS_MAX)]
"""A limit in the type is judged while a message is read, before anything is built of what is too long."""


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One global tensor: its name in Megatron's distributed checkpoint, its global shape (elements) and
    its merge rule."""

    name: str
    shape: Index
    rule: MergeRuleName

    @property
    def elements(self) -> int:
        return prod(self.shape)


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


def is_embedding(name: str) -> bool:
    """Whether a tensor is an input embedding (token or position)."""
    return "embedding" in name or "embed_tokens" in name


def is_output_head(name: str) -> bool:
    """Whether a tensor is the output projection to the vocabulary."""
    return name.startswith("output_layer.") or ".output_layer." in name or "lm_head." in name


def merge_rule_of(name: str) -> MergeRuleName:
    """`avg` for embeddings and the output head, whose rows few tokens touch each; `rda` for everything else."""
    return "avg" if is_embedding(name) or is_output_head(name) else "rda"
