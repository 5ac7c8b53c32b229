"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

WAIT_S = 40.0
"""A test that waits longer for something fails."""

POLL_S = 0.01


class Watched(Protocol):
    """Something without which the wait is in vain; its text says where it stands."""

    @property
    def runs(self) -> bool: ...

    def join(self) -> object:
        """Raises what ended it."""


def wait_until(holds: Callable[[], object], what: str, *watched: Watched, within_s: float = WAIT_S) -> None:
    """Until `holds`; fails at once when something that it depends on has ended."""
    deadline = time.monotonic() + within_s
    while True:
        ended = [each for each in watched if not each.runs]  # asked first, so that the last thing it did counts
        if holds():
            return
        for each in ended:
            each.join()
            raise AssertionError(f"this did not come: {what}; it ended: {each}")
        where = "; ".join(map(str, watched))
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what} ({where})"
        time.sleep(POLL_S)
