"""When to launch, how many answers to wait for, how long to be patient: plain arithmetic on numbers handed in.

Knows no islands, no rounds and no clock. Times are seconds of one monotonic clock, counts are whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil


def quorum_of(quorum: int, min_islands: int, present: int) -> int:
    """K: complete answers needed to close a round of which `present` islands are left or have answered.

    `quorum` 0 means half of them, rounded up. Never below `min_islands`, whatever is left.
    """
    wanted = quorum or (present + 1) // 2
    return max(min_islands, min(wanted, present))


def pipeline_of(pipeline: int, fragments: int, sync_every_steps: int) -> int:
    """Rounds open at once. A round costs at least one local step, so P rounds in H steps need ⌈P/H⌉, and one more."""
    return min(fragments, pipeline or max(2, ceil(fragments / sync_every_steps) + 1))


def kth_smallest(step_times: Iterable[float | None], k: int) -> float | None:
    """The k-th smallest known step time (the largest when fewer are known); None when none is."""
    known = sorted(seconds for seconds in step_times if seconds is not None)
    return known[min(k, len(known)) - 1] if known else None


def launch_gap_s(floor_s: float, sync_every_steps: int, fragments: int, step_time: float | None) -> float:
    """Least time between two launches: each fragment once in H local steps, P fragments evenly spread over them."""
    return max(floor_s, sync_every_steps * (step_time or 0.0) / fragments)


def grace_s(gamma: float, spare_s: float | None, cap_s: float) -> float:
    """How long a round waits beyond its quorum: a share of the time to spare, the whole cap when that is unknown."""
    return cap_s if spare_s is None else min(cap_s, max(0.0, gamma * spare_s))


def grace_cap(cap_s: float, step_time: float | None) -> float:
    """The longest grace: one local step, for islands answer between steps only, but no less than `cap_s`; none if that
    is 0."""
    return max(cap_s, step_time or 0.0) if cap_s else 0.0


def spare_s(tau: float, step_time: float | None, quorum_s: float, sync_s: float) -> float | None:
    """Time a round may still take until the islands would notice: `tau` local steps less what it took and will take."""
    return None if step_time is None else tau * step_time - quorum_s - sync_s


def weight_of(rule: str, steps: int, tokens: int) -> float:
    """Weight of a contribution: tokens²/steps, or the same for everybody that trained. No steps, no weight."""
    if steps == 0:
        return 0.0
    return 1.0 if rule == "equal" else tokens * tokens / steps
