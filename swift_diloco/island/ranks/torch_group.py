"""The ranks of one island over a gloo group of our own (`RankGroup` for torch.distributed), or one process alone.

Own, so that a rank that waits for the network never sits in a collective of the trainer, whose watchdog would end the
job. Payloads travel as their length and a tensor of bytes; nothing is pickled. Knows nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from swift_diloco.core.errors import InternalError

COLLECTIVE_TIMEOUT_S = 7200
"""Longest wait for the other ranks in one call: a rank may be in a long save or evaluation, but not for two hours."""

PAYLOAD_BYTES_MAX = 1 << 30
"""Largest payload of one rank: the boxes of a million tensors are a tenth of it."""


class TorchGroup:
    """All ranks of torch.distributed's world. Constructing it is collective."""

    def __init__(self, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> None:
        self._rank = dist.get_rank()
        self._size = dist.get_world_size()
        self._group: dist.ProcessGroup | None = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def broadcast(self, payload: bytes | None) -> bytes:
        """Rank 0's payload, on every rank."""
        if self._rank == 0 and payload is None:
            raise InternalError("rank 0 must give the payload that it broadcasts")
        size = torch.tensor([len(payload or b"")], dtype=torch.int64)
        dist.broadcast(size, src=0, group=self._open())
        data = _tensor(payload) if payload is not None and self._rank == 0 else _buffer(int(size[0]))
        dist.broadcast(data, src=0, group=self._open())
        return data.numpy().tobytes()

    def gather(self, payload: bytes) -> Sequence[bytes]:
        """Every rank's payload in rank order on rank 0; an empty sequence elsewhere."""
        mine = torch.tensor([len(payload)], dtype=torch.int64)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]
        dist.all_gather(sizes, mine, group=self._open())
        longest = max(int(size[0]) for size in sizes)
        # gloo gathers equal sizes only: all payloads are padded to the longest.
        padded = _buffer(longest)
        padded[: len(payload)] = _tensor(payload)
        buffers = [_buffer(longest) for _ in range(self._size)] if self._rank == 0 else None
        dist.gather(padded, buffers, dst=0, group=self._open())
        if buffers is None:
            return ()
        return [buffer[: int(size[0])].numpy().tobytes() for buffer, size in zip(buffers, sizes, strict=True)]

    def all_true(self, votes: Sequence[bool]) -> list[bool]:
        """For each vote, whether every rank said yes."""
        ballot = torch.tensor([int(vote) for vote in votes], dtype=torch.int64)
        if len(votes):
            dist.all_reduce(ballot, op=dist.ReduceOp.MIN, group=self._open())
        return [bool(vote) for vote in ballot.tolist()]

    def sums(self, numbers: Sequence[int]) -> list[int]:
        """The sum of each number over all ranks, on every rank. All ranks pass equally many."""
        totals = torch.tensor(list(numbers), dtype=torch.int64)
        dist.all_reduce(totals, op=dist.ReduceOp.SUM, group=self._open())
        return [int(total) for total in totals.tolist()]

    def close(self) -> None:
        """Give the group up. Idempotent. torch's own group stays until the job ends: destroying it is collective."""
        self._group = None

    def _open(self) -> dist.ProcessGroup:
        if self._group is None:
            raise InternalError("the group of ranks is closed")
        return self._group


class LoneRank:
    """`RankGroup` of a job of one process, which has no process group."""

    rank = 0
    size = 1

    def broadcast(self, payload: bytes | None) -> bytes:
        if payload is None:
            raise InternalError("rank 0 must give the payload that it broadcasts")
        return payload

    def gather(self, payload: bytes) -> Sequence[bytes]:
        return [payload]

    def all_true(self, votes: Sequence[bool]) -> list[bool]:
        return list(votes)

    def sums(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def close(self) -> None:
        """Nothing to give up."""


def ranks_of_this_job() -> TorchGroup | LoneRank:
    """All ranks of torch.distributed's world; without one, this process alone. Collective."""
    return TorchGroup() if dist.is_initialized() else LoneRank()


def _tensor(payload: bytes) -> torch.Tensor:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise InternalError(
            f"a payload of {len(payload)} bytes between ranks; at most {PAYLOAD_BYTES_MAX} are expected"
        )
    return torch.from_numpy(np.frombuffer(payload, dtype=np.uint8).copy())


def _buffer(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)
