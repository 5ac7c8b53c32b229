"""A syncer whose brain asserts what does not hold for long: `python -m tests.e2e.planted_syncer` with its flags."""

from __future__ import annotations

from typing import Any

from syncer.brain.memory.round import Answer, Round

ASSERTED_AT = 5
"""Outer step whose first complete answer ends the syncer."""

TEXT = f"planted at outer step {ASSERTED_AT}"


def plant(patch: Any) -> None:
    """Replace a method of the rounds with one that raises; `patch(owner, name, value)` does it."""
    real = Round.finish

    def finish(self: Round, island: int, payload_bytes: int) -> Answer:
        if self.t >= ASSERTED_AT:
            raise AssertionError(TEXT)
        return real(self, island, payload_bytes)

    patch(Round, "finish", finish)


if __name__ == "__main__":
    from syncer.cli import main

    plant(setattr)
    raise SystemExit(main())
