"""The ranks of a `swift sft` island: torch.distributed's world under torchrun, else this process alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from swift_diloco.core.errors import InternalError
from swift_diloco.megatron.group import TorchGroup


class LoneRank:
    """`RankGroup` of a job of one process, which has no process group."""

    @property
    def rank(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return 1

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
    """Collective over the job's ranks."""
    return TorchGroup() if dist.is_initialized() and dist.get_world_size() > 1 else LoneRank()
