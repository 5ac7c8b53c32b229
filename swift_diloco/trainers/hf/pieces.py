"""The FP32 values of a transformers model that this rank owns (`ModelPieces` for `swift sft`).

What travels are the trained parameters, all of them: the whole model, or the adapters and modules saved with them. Each
data parallel rank holds all of it and owns an even share. Knows nothing of links, sessions or the syncer.

Invariant: after `spread` the parameters of all ranks agree bit for bit, and each owner's FP32 values are the
written ones.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from swift_diloco.core.errors import UserError
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout, TensorSpec, merge_rule_of
from swift_diloco.island.ranks.rank_group import RankGroup
from swift_diloco.trainers.hf.master_files import load_masters
from swift_diloco.trainers.hf.names import exported_names
from swift_diloco.trainers.hf.shares import share, share_boxes
from swift_diloco.trainers.hf.weights import Weight
from swift_diloco.trainers.streams import await_copies, check_stream

BUCKET_BYTES = 64 << 20
"""Small ranges are passed between ranks together, up to this much at a time (bytes): the size of the scratch tensor."""

logger = logging.getLogger("swift_diloco")

DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The checkpoint that the trainer has loaded."""

    folder: Path
    step: int


@dataclass(frozen=True, slots=True)
class _Bound:
    """A fragment on this rank: what it owns in stream order, and the ranges of every rank."""

    owned: tuple[Weight, ...]
    elements: int
    ranges: tuple[tuple[torch.Tensor, ...], ...]
    """By rank: the flat views of the parameters that this rank writes and the others receive, in stream order."""


class HfPieces:
    """The pieces of one rank. Construct when the trainer has prepared the model."""

    def __init__(self, model: torch.nn.Module, group: RankGroup, loaded: Loaded | None = None) -> None:
        self._group = group
        self._loaded = loaded
        self._parameters = trained_parameters(model)
        self._by_number: dict[int, torch.nn.Parameter] = {}
        self._names: dict[int, str] = {}
        self._owned: dict[int, Weight] = {}
        self._fragments: list[_Bound] = []

    @property
    def parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """What is trained, by exported name."""
        return self._parameters

    def specs(self) -> Sequence[TensorSpec]:
        """All tensors: every rank holds the whole model."""
        return [TensorSpec(name, tuple(p.shape), merge_rule_of(name)) for name, p in self._parameters.items()]

    def boxes(self, layout: Layout) -> Sequence[Box]:
        """The boxes of this rank's shares."""
        self._names = {number: spec.name for number, spec in enumerate(layout.tensors)}
        self._by_number = {number: self._parameters[name] for number, name in self._names.items()}
        for number, parameter in self._by_number.items():
            begin, end = share(tuple(parameter.shape), self._group.rank, self._group.size)
            self._owned[number] = Weight(parameter, begin, end)
        self._restore_masters()
        return share_boxes(layout, self._group.rank, self._group.size)

    def _restore_masters(self) -> None:
        masters = self.masters()
        if self._loaded is None or not masters:
            return
        trouble = load_masters(self._loaded.folder, masters, self._loaded.step)
        if trouble is not None:
            logger.warning(
                "rank %d: the FP32 copies of low-precision weights beside %s cannot be used: %s; the rounded weights "
                "are taken",
                self._group.rank,
                self._loaded.folder,
                trouble,
            )

    def masters(self) -> dict[str, tuple[int, int, torch.Tensor]]:
        """The FP32 copies of low-precision weights that this rank keeps, by name: first and last element, values."""
        kept = {}
        for number, weight in self._owned.items():
            if weight.master is not None and weight.elements:
                kept[self._names[number]] = (weight.begin, weight.begin + weight.elements, weight.master)
        return kept

    def bind(self, pieces: PieceMap) -> None:
        """Learn the fragments, and drop those known before."""
        self._fragments = []
        for fragment, tensors in enumerate(pieces.plan.fragments):
            # The boxes of one tensor are one flat range, so the stream is one range per tensor, in layout order.
            owned = tuple(self._owned[number] for number in sorted(tensors))
            elements = sum(weight.elements for weight in owned)
            if elements != pieces.elements(fragment):
                raise AssertionError(f"fragment {fragment} has {pieces.elements(fragment)} elements, owned {elements}")
            self._fragments.append(_Bound(owned, elements, self._ranges(sorted(tensors))))

    def _ranges(self, tensors: Sequence[int]) -> tuple[tuple[torch.Tensor, ...], ...]:
        ranges = []
        for rank in range(self._group.size):
            views = []
            for number in tensors:
                parameter = self._by_number[number]
                begin, end = share(tuple(parameter.shape), rank, self._group.size)
                if end > begin:
                    views.append(parameter.detach().view(-1)[begin:end])
            ranges.append(tuple(views))
        return tuple(ranges)

    @torch.no_grad()
    def read(self, fragment: int, out: torch.Tensor) -> None:
        """Copy the present FP32 values of the rank's stream of `fragment` into `out`."""
        bound = self._fragments[fragment]
        check_stream(fragment, out, bound.elements)
        position = 0
        for weight in bound.owned:
            weight.read(out[position : position + weight.elements])
            position += weight.elements
        await_copies(weight.device for weight in bound.owned)

    @torch.no_grad()
    def write(self, values: Mapping[int, torch.Tensor]) -> None:
        """Give the weights that this rank owns new values."""
        for fragment in sorted(values):
            bound = self._fragments[fragment]
            check_stream(fragment, values[fragment], bound.elements)
            position = 0
            for weight in bound.owned:
                weight.write(values[fragment][position : position + weight.elements])
                position += weight.elements
            await_copies(weight.device for weight in bound.owned)

    @torch.no_grad()
    def spread(self, fragments: Collection[int]) -> None:
        """Every rank's own weights to all others, over the training network. Collective."""
        if self._group.size == 1:
            return
        for fragment in sorted(fragments):
            for rank, views in enumerate(self._fragments[fragment].ranges):
                pass_on(views, rank, mine=rank == self._group.rank)


def trained_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained, by exported name. Raises `UserError` for one that cannot travel exactly."""
    adapters: set[str] = set(getattr(model, "peft_config", {}) or {})
    named: dict[str, Any] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    short = exported_names(named, adapters)
    for name, parameter in named.items():
        if parameter.dtype not in DTYPES:
            raise UserError(
                f"parameter {name!r} is {str(parameter.dtype).removeprefix('torch.')}; islands train float32 and "
                "bfloat16 weights: set --torch_dtype float32 or bfloat16"
            )
        if not parameter.is_contiguous():
            raise UserError(f"parameter {name!r} is not contiguous in memory; it cannot be trained on islands yet")
    return {short[name]: parameter for name, parameter in named.items()}


def pass_on(views: Sequence[torch.Tensor], source: int, *, mine: bool) -> None:
    """Have every rank's `views` hold what those of rank `source` hold, over the trainer's own process group.

    As bytes, so that every backend can carry every type. Collective.
    """
    for bucket in buckets(views):
        if len(bucket) == 1:
            dist.broadcast(bucket[0].view(torch.uint8), src=source)
            continue
        flat = torch.cat(bucket)
        dist.broadcast(flat.view(torch.uint8), src=source)
        if not mine:
            for view, received in zip(bucket, torch.split(flat, [view.numel() for view in bucket]), strict=True):
                view.copy_(received)


def buckets(views: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Consecutive views of one type and device, up to BUCKET_BYTES together; a larger one stays alone."""
    groups: list[list[torch.Tensor]] = []
    filled = 0
    for view in views:
        size = view.numel() * view.element_size()
        last = groups[-1][-1] if groups else None
        fits = last is not None and last.dtype == view.dtype and last.device == view.device
        if fits and filled + size <= BUCKET_BYTES:
            groups[-1].append(view)
            filled += size
        else:
            groups.append([view])
            filled = size
    return groups
