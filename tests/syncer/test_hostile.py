"""Well-formed nonsense from a peer: it may be refused or ignored, but it never stops the server or the coordinator.

The real coordinator, server and arithmetic, with a socket that only takes and gives messages; random messages from a
seed, mixed with the honest ones of an island that trains, so that every state is met.
"""

from __future__ import annotations

import itertools
import random
import threading
import types
import typing
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from swift_diloco.core.formats import frames
from swift_diloco.core.formats import messages as m
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.tensors import Layout, TensorSpec, make_layout
from swift_diloco.core.numbers.digest import checksum
from swift_diloco.core.numbers.outer_optimizer import OuterSettings
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from syncer.brain.coordinator import Coordinator
from syncer.files.status_file import StatusFile
from syncer.files.tape import Tape
from syncer.links.endpoint import Arrived, Endpoint, Gone
from syncer.numbers.global_state import GlobalState
from syncer.server import Files, Server, ServerRules

LAYOUT = make_layout([TensorSpec(f"decoder.layers.{i}.weight", (4, 6), "rda") for i in range(4)])
BOXES = tuple(Box(i, (0, 0), (4, 6)) for i in range(4))
KINDS = (m.Hello, m.RankHello, m.Heartbeat, m.PushOffer, m.Chunk, m.Fetch, m.Fetched, m.Done, m.CutInstalled, m.Saved)
INTEGERS = (-(2**63), -1, 0, 0, 0, 1, 1, 2, 3, 4, 7, 100, 2**31, 2**63 - 1)
LAYOUTS = (LAYOUT, Layout((), "x"), Layout(LAYOUT.tensors, "no"), make_layout([TensorSpec("a", (2**62, 4), "rda")]))
STEPS = 40
HONEST_COMMITS = 3
"""Commits before there is any nonsense, so that it meets a run with values, rounds and a push on its way."""
CUT_SHARE = 0.02
"""Share of steps at which a link is cut."""
JOB_S = 0.002
"""Longest wait of a turn: a merge of these few numbers is done by then, mostly."""

CONTROL, BULK, STRANGER = "aa", "bb", "cc"


class Wire(Endpoint):
    """An endpoint without a socket: a test puts arrivals in and reads what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox: deque[Arrived | Gone] = deque()
        self.story: Iterator[None] = iter(())
        """Goes on once per turn of the server and fills the inbox; at its end `over` is called each turn."""
        self.over: Callable[[], None] = lambda: None
        self.woken = threading.Event()
        self.sent: list[tuple[str, m.SyncerMessage]] = []

    @property
    def connected(self) -> int:
        return 1

    def wait(self, timeout_s: float) -> None:
        self.woken.wait(JOB_S)
        self.woken.clear()
        if next(self.story, "over") == "over":
            self.over()

    def wake(self) -> None:
        self.woken.set()

    def arrivals(self) -> Iterator[Arrived | Gone]:
        while self.inbox:
            yield self.inbox.popleft()

    def send(self, peer: str, message: m.SyncerMessage) -> None:
        assert frames.decode_from_syncer(frames.encode(message))[0] == message
        self.sent.append((peer, message))

    def send_piece(self, peer: str, message: m.Piece, payload: frames.Buffer) -> zmq.MessageTracker | None:
        return zmq.MessageTracker()


class Nonsense:
    """Random values of a type, some of which make sense."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.texts = ["", "s", "x" * 300, "é\n\x1b[31m"]

    def of(self, hint: Any) -> Any:
        choose = self.random.choice
        if hint in (int, str, bool, Layout, type(None)):
            pool: dict[Any, Any] = {int: INTEGERS, str: self.texts, bool: (True, False), Layout: LAYOUTS}
            return choose(pool.get(hint, (None,)))
        if typing.get_origin(hint) is tuple:
            return tuple(self.of(typing.get_args(hint)[0]) for _ in range(choose((0, 1, 1, 2, 3))))
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            return self.of(choose(typing.get_args(hint)))
        if issubclass(hint, Enum):
            return choose(list(hint))
        return self.message(hint)

    def message(self, kind: type[msgspec.Struct]) -> Any:
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: self.of(hints[field.name]) for field in msgspec.structs.fields(kind)})


class Scene:
    """One honest island and its nonsense."""

    def __init__(self, folder: Path, tape: Tape, seed: int) -> None:
        self.nonsense = Nonsense(seed)
        self.wire = Wire()
        numbers = itertools.count()
        settings = SyncerSettings(min_islands=1, sync_every_steps=1, reconnect_grace_s=0.0, fragments=2)
        self.brain = Coordinator(settings, session="s", tokens=lambda: f"token-{next(numbers)}")
        self.state = GlobalState(OuterSettings(1.0, 0.9, True), average_only=False)
        files = Files(tape, StatusFile(folder / "status.json"), "tcp://here")
        self.server = Server(self.brain, ServerRules("s"), self.state, self.wire, files)
        self.served = self.answered = 0

    def tell(self, peer: str, message: m.IslandMessage, payload: bytes | None = None) -> None:
        self.wire.inbox.append(Arrived(peer, frames.encode(message, payload)))

    def story(self) -> Iterator[None]:
        """An island that joins, trains and talks nonsense; then a stranger asks whether anybody is there."""
        yield from self.join()
        steps = itertools.count()
        while not any(name.version >= HONEST_COMMITS for name in self.state.names):
            yield from self.train(next(steps))
        for _ in range(STEPS):
            yield from self.train(next(steps))
            self.talk_nonsense()
            yield
            if self.nonsense.random.random() < CUT_SHARE:
                self.wire.inbox.append(Gone(self.nonsense.random.choice((CONTROL, BULK, STRANGER))))
            self.brain.validate()
        self.wire.sent.clear()
        self.tell(STRANGER, m.Hello(5, "still there?", LAYOUT.fingerprint, "h", 1, "i", 0, 1, LAYOUT))
        yield
        yield

    def train(self, step: int) -> Iterator[None]:
        """A step of the honest island."""
        self.upload()
        yield
        self.push(step)
        yield

    def join(self) -> Iterator[None]:
        self.tell(CONTROL, m.Hello(0, "n", LAYOUT.fingerprint, "h", 1, "i", 0, 1, LAYOUT))
        yield
        yield
        welcome = next(message for _, message in self.wire.sent if isinstance(message, m.Welcome))
        self.generation, self.token = welcome.generation, welcome.token
        self.tell(BULK, m.RankHello("s", self.generation, self.token, 0, BOXES))
        yield
        self.nonsense.texts += [self.generation, self.token, LAYOUT.fingerprint]

    def upload(self) -> None:
        """Send what windows ask for: each fragment is one chunk."""
        windows = [message for _, message in self.wire.sent if isinstance(message, m.Window)]
        for window in windows[self.served :]:
            payload = np.ones(LAYOUT.elements // 2, np.float32).tobytes()
            self.tell(BULK, m.Chunk("s", self.generation, window.upload, 0, 0, checksum(payload)), payload)
        self.served = len(windows)

    def push(self, step: int) -> None:
        """Answer the oldest pull that is not answered."""
        pulls = [message for _, message in self.wire.sent if isinstance(message, m.Pull)]
        if len(pulls) > self.answered:
            pull, name = pulls[self.answered], self.state.names[pulls[self.answered].fragment]
            push = f"{self.generation}.{step}"
            self.tell(CONTROL, m.PushOffer("s", self.generation, push, pull.t, pull.attempt, name, 1, 10, step))
            self.answered += 1

    def talk_nonsense(self) -> None:
        choose = self.nonsense.random.choice
        message = self.nonsense.message(choose(KINDS))
        likely = {"session": "s", "generation": self.generation, "rank": 0, "token": self.token}
        if self.state.names:
            likely |= {"name": choose(self.state.names), "anchor": choose(self.state.names)}
        known = {
            name: value for name, value in likely.items() if hasattr(message, name) and choose((True, True, False))
        }
        message = msgspec.structs.replace(message, **known)
        self.tell(choose((CONTROL, BULK, STRANGER)), message, b"x" if isinstance(message, m.Chunk) else None)


@pytest.mark.net
@pytest.mark.parametrize("seed", range(12))
def test_nonsense_of_a_peer_stops_nobody(tmp_path: Path, seed: int) -> None:
    with Tape(tmp_path / "tape.jsonl") as tape:
        scene = Scene(tmp_path, tape, seed)
        scene.wire.story, scene.wire.over = scene.story(), scene.server.request_stop
        outcome = scene.server.run()
    if outcome.reason == "every island has saved the final cut":
        return  # The only island said so; that it was nonsense nobody could know.
    assert "stop" in outcome.reason
    answers = [message for peer, message in scene.wire.sent if peer == STRANGER]
    assert any(isinstance(each, m.Welcome | m.Refused) and each.nonce == "still there?" for each in answers)
