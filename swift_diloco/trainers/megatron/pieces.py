"""The FP32 values of a Megatron model that this rank owns (`ModelPieces` for ms-swift's Megatron trainer).

Three questions meet here: which global boxes are the local parameters (`sharded_state.py`), of which flat ranges does
this rank hold FP32 masters (`masters.py`), and who else holds the same (`replicas.py`). Knows nothing of links,
sessions or the syncer.

Invariants: every element of the layout is owned by exactly one rank (the one whose part is the main copy and whose
optimizer holds its range); after `write` the masters, their copies on other ranks and the low-precision parameters of
all ranks agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from swift_diloco.core.errors import InternalError, UserError
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout, TensorSpec
from swift_diloco.island.ranks.rank_group import RankGroup
from swift_diloco.trainers.megatron.masters import Master, masters_of, publish
from swift_diloco.trainers.megatron.parts import Part, cuts
from swift_diloco.trainers.megatron.replicas import Replicator, Segment, agree_transfers
from swift_diloco.trainers.megatron.sharded_state import model_parts
from swift_diloco.trainers.megatron.supported import check_supported
from swift_diloco.trainers.streams import await_copies, check_stream


@dataclass(frozen=True, slots=True)
class _Bound:
    """A fragment on this rank: owned segments in stream order, the tensors, and the parameters they are in."""

    segments: tuple[Segment, ...]
    elements: int
    tensors: frozenset[int]
    parameters: frozenset[torch.nn.Parameter]


class MegatronPieces:
    """The pieces of one rank, made after the trainer loaded its checkpoint. `boxes` and `write` are collective."""

    def __init__(self, trainer: Any, group: RankGroup) -> None:
        check_supported(trainer)
        self._group = group
        self._chunks: Sequence[Any] = trainer.wrapped_models
        self._parts = model_parts(trainer.unwrapped_models, trainer.config.padded_vocab_size)
        self._masters = masters_of(trainer.optimizer)
        for master in self._masters:
            if master.parameter not in self._parts:
                raise UserError("the optimizer trains a parameter that Megatron's sharded state dict does not describe")
        self._owned: dict[Box, Segment] = {}
        self._replicator: Replicator | None = None
        self._tensor_of: dict[str, int] = {}
        self._fragments: list[_Bound] = []

    def specs(self) -> Sequence[TensorSpec]:
        """The global tensors of which this rank holds any part, in any order."""
        return list({part.spec for parts in self._parts.values() for part in parts})

    def boxes(self, layout: Layout) -> Sequence[Box]:
        """The boxes whose FP32 values this rank owns. Collective: the ranks also agree who passes values to whom."""
        self._tensor_of = {spec.name: number for number, spec in enumerate(layout.tensors)}
        owned: list[Segment] = []
        copies: list[Segment] = []
        for master in self._masters:
            for part in self._parts[master.parameter]:
                main = part.main and (master.sharded_over_dp or part.main_over_dp)
                (owned if main else copies).extend(self._segments(master, part))
        self._owned = {segment.box: segment for segment in owned}
        transfers = agree_transfers(list(self._owned), [segment.box for segment in copies], self._group)
        self._replicator = Replicator(transfers, self._group.rank, owned, copies)
        if transfers and dist.is_initialized():
            # NCCL opens point-to-point links inside a communicator that all ranks must have entered once before.
            dist.barrier()
        return list(self._owned)

    def _segments(self, master: Master, part: Part) -> list[Segment]:
        number = self._tensor_of[part.spec.name]
        segments = []
        for cut in cuts(part, master.begin, master.end):
            first = cut.begin - master.begin
            segments.append(Segment(Box(number, cut.start, cut.shape), master.values[first : first + cut.elements]))
        return segments

    def bind(self, pieces: PieceMap) -> None:
        """Learn the fragments, and drop those known before."""
        parameters_of: dict[int, set[torch.nn.Parameter]] = {}
        for parameter, parts in self._parts.items():
            for part in parts:
                parameters_of.setdefault(self._tensor_of[part.spec.name], set()).add(parameter)
        self._fragments = []
        for fragment, tensors in enumerate(pieces.plan.fragments):
            segments = tuple(self._owned[box] for box in pieces.fragment_boxes(fragment))
            parameters = frozenset(p for tensor in tensors for p in parameters_of.get(tensor, ()))
            self._fragments.append(_Bound(segments, pieces.elements(fragment), frozenset(tensors), parameters))

    @torch.no_grad()
    def read(self, fragment: int, out: torch.Tensor) -> None:
        """Copy the present FP32 values of the rank's stream of `fragment` into `out`."""
        bound = self._fragments[fragment]
        check_stream(fragment, out, bound.elements)
        position = 0
        for segment in bound.segments:
            end = position + segment.values.numel()
            out[position:end].copy_(segment.values, non_blocking=True)
            position = end
        await_copies(segment.values.device for segment in bound.segments)

    @torch.no_grad()
    def write(self, values: Mapping[int, torch.Tensor]) -> None:
        """Give the masters that this rank owns new values."""
        for fragment in sorted(values):
            bound = self._fragments[fragment]
            check_stream(fragment, values[fragment], bound.elements)
            position = 0
            for segment in bound.segments:
                end = position + segment.values.numel()
                segment.values.copy_(values[fragment][position:end], non_blocking=True)
                position = end
        for fragment in sorted(values):
            await_copies(segment.values.device for segment in self._fragments[fragment].segments)

    @torch.no_grad()
    def spread(self, fragments: Collection[int]) -> None:
        """Masters of copies, then the parameters of all ranks. Collective."""
        if self._replicator is None:
            raise InternalError("`boxes` must come before `spread`")
        bound = [self._fragments[fragment] for fragment in sorted(fragments)]
        self._replicator.exchange(frozenset[int]().union(*(each.tensors for each in bound)))
        parameters = frozenset[torch.nn.Parameter]().union(*(each.parameters for each in bound))
        publish(self._masters, parameters, self._chunks)
