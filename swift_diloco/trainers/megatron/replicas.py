"""Values on their way from the rank that owns them to the ranks that hold copies of them.

Norm weights have a master on every tensor parallel rank, tied embeddings one on the first and one on the last pipeline
stage, and without a distributed optimizer everything has one on every data parallel rank. One rank owns each element;
the others' masters must become equal bit for bit when values are installed. Who sends what to whom is planned once,
from the boxes that all ranks announce: ranges need not match (two pipeline stages split a tied embedding differently
over data parallel ranks).

The plan is made over our own CPU group, the values travel over the training network, from device to device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist

from swift_diloco.core.errors import InternalError
from swift_diloco.core.layout.boxes import Box, overlap, slices
from swift_diloco.island.ranks.rank_group import RankGroup


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One box of a global tensor and the flat FP32 values of it on this rank, which share memory with the optimizer."""

    box: Box
    values: torch.Tensor


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """What one rank has to do with the replicated tensors."""

    owned: tuple[Box, ...]
    copies: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A box that one rank's master gives to another's."""

    source: int
    target: int
    box: Box


def plan_transfers(announced: Sequence[Announcement]) -> list[Transfer]:
    """Every transfer that makes all copies whole, in one order for all ranks. `announced` is in rank order."""
    owners: dict[int, list[tuple[int, Box]]] = {}
    for rank, announcement in enumerate(announced):
        for box in announcement.owned:
            owners.setdefault(box.tensor, []).append((rank, box))
    transfers: list[Transfer] = []
    for target, announcement in enumerate(announced):
        for copy in announcement.copies:
            sources = [(rank, overlap(copy, box)) for rank, box in owners.get(copy.tensor, [])]
            found = [Transfer(rank, target, box) for rank, box in sources if box is not None]
            if sum(transfer.box.elements for transfer in found) != copy.elements:
                raise InternalError(
                    f"rank {target} holds a copy of box {copy} of tensor {copy.tensor} that no rank owns"
                )
            transfers += found
    return sorted(transfers, key=lambda transfer: (transfer.source, transfer.target, transfer.box))


def agree_transfers(owned: Sequence[Box], copies: Sequence[Box], group: RankGroup) -> list[Transfer]:
    """The transfers of all ranks. Collective; only tensors of which some rank holds a copy are talked about."""
    tensors: set[int] = set()
    for answer in _all_gather({box.tensor for box in copies}, group):
        tensors |= msgspec.msgpack.decode(answer, type=set[int])
    if not tensors:
        return []
    mine = Announcement(tuple(box for box in owned if box.tensor in tensors), tuple(copies))
    return plan_transfers([msgspec.msgpack.decode(answer, type=Announcement) for answer in _all_gather(mine, group)])


def _all_gather(item: object, group: RankGroup) -> list[bytes]:
    gathered = group.gather(msgspec.msgpack.encode(item))
    everything = group.broadcast(msgspec.msgpack.encode(list(gathered)) if group.rank == 0 else None)
    return msgspec.msgpack.decode(everything, type=list[bytes])


def view_of(segment: Segment, box: Box) -> torch.Tensor:
    """The elements of `box`, which lies in the segment's box, as a strided view of its values."""
    return segment.values.view(segment.box.shape)[slices(box, segment.box)]


class Replicator:
    """Carries installed values to this rank's copies, and this rank's to the copies of others."""

    def __init__(
        self, transfers: Sequence[Transfer], rank: int, owned: Sequence[Segment], copies: Sequence[Segment]
    ) -> None:
        self._rank = rank
        self._any = bool(transfers)
        self._sends = _located([t for t in transfers if t.source == rank], owned, lambda t: t.target)
        self._receives = _located([t for t in transfers if t.target == rank], copies, lambda t: t.source)

    @torch.no_grad()
    def exchange(self, tensors: frozenset[int]) -> None:
        """Make all copies of `tensors` equal to their owners' masters. Collective: all ranks pass the same tensors."""
        if not self._any:
            return
        operations: list[dist.P2POp] = []
        for peer, parts in _of(self._sends, tensors).items():
            if peer == self._rank:
                raise InternalError(f"rank {peer} owns boxes that it also holds as copies")
            packed = torch.cat([view_of(segment, box).reshape(-1) for box, segment in parts])
            operations.append(dist.P2POp(dist.isend, packed, peer))
        arrivals: list[tuple[torch.Tensor, list[tuple[Box, Segment]]]] = []
        for peer, parts in _of(self._receives, tensors).items():
            buffer = parts[0][1].values.new_empty(sum(box.elements for box, _ in parts))
            operations.append(dist.P2POp(dist.irecv, buffer, peer))
            arrivals.append((buffer, parts))
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        for buffer, parts in arrivals:
            position = 0
            for box, segment in parts:
                view_of(segment, box).copy_(buffer[position : position + box.elements].view(box.shape))
                position += box.elements


_Located = dict[int, list[tuple[Box, Segment]]]


def _of(located: _Located, tensors: frozenset[int]) -> _Located:
    chosen = {peer: [part for part in parts if part[0].tensor in tensors] for peer, parts in sorted(located.items())}
    return {peer: parts for peer, parts in chosen.items() if parts}


def _located(transfers: Sequence[Transfer], segments: Sequence[Segment], peer: Callable[[Transfer], int]) -> _Located:
    """The transfers by peer, each with the segment of this rank that its box lies in."""
    by_tensor: Mapping[int, list[Segment]] = _by_tensor(segments)
    located: _Located = {}
    for transfer in transfers:
        box = transfer.box
        home = next(s for s in by_tensor[box.tensor] if overlap(s.box, box) == box)
        located.setdefault(peer(transfer), []).append((box, home))
    return located


def _by_tensor(segments: Sequence[Segment]) -> dict[int, list[Segment]]:
    groups: dict[int, list[Segment]] = {}
    for segment in segments:
        groups.setdefault(segment.box.tensor, []).append(segment)
    return groups
