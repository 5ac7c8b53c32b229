"""How fast an island trains: its step number and its step time, as heard."""

from __future__ import annotations

STEP_TIME_SHARE = 0.3
"""Share of the newest sample in the step time's moving average: about six samples decide, not one slow step."""


class StepClock:
    """Seconds per local step of one island, from *advances* of its step number only.

    The first advance after a start or a pause only sets the reference: before it lies loading or waiting.
    """

    __slots__ = ("_since", "seconds", "step")

    def __init__(self, step: int) -> None:
        self.step = step
        self.seconds: float | None = None
        self._since: float | None = None

    def advance(self, step: int, now: float) -> bool:
        """Take a step number; whether it is higher than any before. A repeated or lower number changes nothing."""
        if step <= self.step:
            return False
        if self._since is not None and now > self._since:
            sample = (now - self._since) / (step - self.step)
            self.seconds = sample if self.seconds is None else self.seconds + STEP_TIME_SHARE * (sample - self.seconds)
        self.step, self._since = step, now
        return True

    def interrupt(self) -> None:
        """The island does not train for a while: the time until its next advance is no step time."""
        self._since = None
