"""What an island trained in a local step, as all of its ranks agree on it. Knows no trainer."""

from __future__ import annotations

from typing import NamedTuple

from swift_diloco.core.errors import InternalError
from swift_diloco.island.ranks.rank_group import RankGroup


class StepWork(NamedTuple):
    """What a step did on the whole island: whether it updated the model, and its supervised tokens (else 0)."""

    trained: bool
    tokens: int


def agree_on_work(group: RankGroup, *, trained: bool, tokens: int) -> StepWork:
    """One rank's part of a step to that of the whole island. Collective."""
    total, updated = group.sums([tokens, int(trained)])
    if updated not in (0, group.size):
        raise InternalError(f"the optimizer took this step on {updated} of {group.size} ranks; expected all or none")
    return StepWork(updated > 0, total if updated else 0)
