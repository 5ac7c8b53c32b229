"""Islands that only fetch, many of them in one process of their own.

`python -m tests.bench.receivers TASK` obeys lines on its standard input: `join` (answered with `joined`
when all are members) and `leave` (answered with what they saw, as JSON). They never train, so they answer no pull, and
the first values are what they never have in full: they stay in catch-up, as an island does whose link is slower than
the rounds.
"""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from swift_diloco.core.errors import DilocoError
from swift_diloco.island.brain.stages import Membership
from swift_diloco.tools.bench.processes import end
from swift_diloco.tools.bench.rank import DialTarget, even_layout
from tests.bench.beating_rank import BeatingRank

TURN_S = 0.02
JOIN_LIMIT_S = 60.0
JOIN, LEAVE, JOINED = "join", "leave", "joined"


class Task(msgspec.Struct, frozen=True):
    """Who they are."""

    addresses: tuple[str, ...]
    first_island: int
    elements: int
    fragments: int
    heartbeat_s: float


class Seen(msgspec.Struct, frozen=True):
    """What they saw between `joined` and `leave`."""

    fetched_bytes: list[int]
    installed: list[int]
    heartbeat_s: float
    """The longest wait for the answer to a heartbeat, one without an answer included."""


class Receivers:
    """The process, from outside."""

    def __init__(self, task: Task) -> None:
        self._command = [sys.executable, "-m", __name__, msgspec.json.encode(task).decode()]

    def __enter__(self) -> Receivers:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        end(self._process)

    def order(self, word: str) -> None:
        """Say something."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def answer(self) -> bytes:
        """What it answers; waits for it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DilocoError("the receivers of the bench ended early; their error is above")
        return line.strip()


def main() -> None:
    """The process."""
    logging.getLogger("swift_diloco").setLevel(logging.WARNING)
    task = msgspec.json.decode(sys.argv[1], type=Task)
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    while orders.get() == JOIN:
        with ExitStack() as stack:
            ranks = [stack.enter_context(rank) for rank in _ranks(task)]
            _turn_until_joined(ranks)
            print(JOINED, flush=True)
            before = [rank.bulk.traffic.fetched_bytes for rank in ranks]
            for rank in ranks:
                rank.control.heartbeat_s.clear()
            while orders.empty():
                _turn(ranks)
            orders.get()
            print(msgspec.json.encode(_seen(ranks, before)).decode(), flush=True)


def _ranks(task: Task) -> list[BeatingRank]:
    layout = even_layout(task.elements, task.fragments)
    return [
        BeatingRank(DialTarget(address, address, task.heartbeat_s), task.first_island + number, layout)
        for number, address in enumerate(task.addresses)
    ]


def _listen(orders: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        orders.put(line.strip())
    orders.put("")  # Whoever gave orders is gone.


def _turn(ranks: Sequence[BeatingRank]) -> None:
    for rank in ranks:
        rank.turn(0.0, trained=False)
    time.sleep(TURN_S)


def _turn_until_joined(ranks: Sequence[BeatingRank]) -> None:
    deadline = time.monotonic() + JOIN_LIMIT_S
    while any(rank.session.membership is not Membership.MEMBER for rank in ranks):
        _turn(ranks)
        if time.monotonic() > deadline:
            raise DilocoError(f"the receivers did not join within {JOIN_LIMIT_S:g} s")


def _seen(ranks: Sequence[BeatingRank], before: Sequence[int]) -> Seen:
    fetched = [rank.bulk.traffic.fetched_bytes - start for rank, start in zip(ranks, before, strict=True)]
    waits = [rank.control.longest_wait_s for rank in ranks]
    return Seen(fetched, [len(rank.notes.installed) for rank in ranks], max(waits))


if __name__ == "__main__":
    main()
