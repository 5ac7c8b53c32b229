"""Bad peers beside a good island: each is told, nothing of theirs is taken, and the island ends as if alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import zmq

from swift_diloco.core.formats import frames, operator_messages, status, tape_lines
from swift_diloco.core.formats import messages as m
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import make_layout
from swift_diloco.core.numbers.digest import checksum
from tests.e2e.harness import FAST, SyncerProcess, check_tape, in_background
from tests.fakes.island import FakeIsland, Job
from tests.fakes.quadratic import SPECS

pytestmark = pytest.mark.net

WAIT_MS = 10_000
PATIENCE_MS = 20
"""How long a bad member waits for news before it goes on."""
Kind = TypeVar("Kind", bound=m.SyncerMessage)
LAYOUT = make_layout(SPECS)
WHOLE = tuple(Box(i, (0,) * len(spec.shape), spec.shape) for i, spec in enumerate(LAYOUT.tensors))
VALUE = m.ValueName(0, 0, "made up")


@dataclass
class Peer:
    """A connection that says what it should not."""

    address: str
    socket: zmq.Socket[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(self.address)

    def send(self, message: m.IslandMessage | m.SyncerMessage, payload: bytes | None = None) -> None:
        self.socket.send_multipart(frames.encode(message, payload))

    def hear(self, kind: type[Kind]) -> Kind:
        """The next message of a kind; others are passed over."""
        while self.socket.poll(WAIT_MS):
            message, _ = frames.decode_from_syncer(self.socket.recv_multipart())
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} came")

    def hear_any(self, wait_ms: int = WAIT_MS) -> m.SyncerMessage | None:
        """The next message, if one comes in time."""
        if not self.socket.poll(wait_ms):
            return None
        return frames.decode_from_syncer(self.socket.recv_multipart())[0]

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()


@contextmanager
def good_run(folder: Path, *flags: str, step_s: float) -> Iterator[tuple[SyncerProcess, str]]:
    """A syncer and one island that trains beside whatever happens; it must end as plain training does."""
    with SyncerProcess(folder, *FAST, "--align", "carry", *flags) as syncer:
        address = syncer.address
        island = FakeIsland(Job(address, ranks=2, steps=12, step_s=step_s))
        thread = in_background([island])
        yield syncer, address
        thread.join(60)
        assert not thread.is_alive() and island.errors == [], syncer.text()
        assert syncer.wait() == 0, syncer.text()
        plain = 1.0 - 0.5**12
        assert all((tensor == plain).all() for tensor in island.tensors.values())
        check_tape(syncer.tape())
        merged = [part for line in syncer.events(tape_lines.Commit) if not line.void for part in line.contributions]
        assert {part.island for part in merged} == {0}


def chunk(index: int = 0, **fields: Any) -> m.Chunk:
    values: dict[str, Any] = {"session": "s", "generation": "g", "upload": "g.1", "rank": 0, "checksum": 0}
    return m.Chunk(index=index, **(values | fields))


MALFORMED: dict[str, tuple[list[Any], str]] = {
    "another protocol": ([b"GET / HTTP/1.1", b"Host: x"], "does not begin with its magic"),
    "one frame": ([frames.PREAMBLE], "a message of 1 frames; expected 2 or 3"),
    "another version": ([b"SDLC\x00\x63", b"x"], "wire version 99; expected 1"),
    "truncated": ([frames.PREAMBLE, bytes(frames.encode(m.Heartbeat("s", "g", 1))[1])[:-2]], "truncated"),
    "random": ([frames.PREAMBLE, b"\xde\xad\xbe\xef"], "not a message from an island"),
    "wrong direction": (frames.encode(m.Joined("s", "g")), "not a message from an island"),
    "oversized payload": (frames.encode(chunk(), bytes(4 * CHUNK_ELEMENTS + 1)), "a payload of 1048577 bytes"),
    "oversized header": (frames.encode(m.Leave("s", "g", "x" * 70_000)), "a Leave header of 70"),
    "payload where none belongs": ([*frames.encode(m.Done("s", "g", 1)), b"x"], "a Done with payload"),
    "huge claim": ([frames.PREAMBLE, b"\xdf\xff\xff\xff\xff"], "not a message from an island"),
}


def test_malformed_messages_and_replays_are_told_counted_and_noticed_by_nobody_else(tmp_path: Path) -> None:
    with good_run(tmp_path, step_s=0.1) as (syncer, address):
        peer = Peer(address)
        for parts, reason in MALFORMED.values():
            peer.socket.send_multipart(parts)
            assert reason in peer.hear(m.Refused).reason
        replays: list[tuple[m.IslandMessage, bytes | None]] = [
            (m.Heartbeat("an earlier session", "g", 5), None),
            (m.PushOffer("an earlier session", "g", "g.1", 1, 1, VALUE, 3, 30, 3), None),
            (m.Saved("an earlier session", "g"), None),
            (chunk(session="an earlier session"), b"x"),
        ]
        for message, payload in replays:
            peer.send(message, payload)
            assert peer.hear(m.Unknown).reason
        peer.send(operator_messages.AdminRequest("n", "guess", operator_messages.AdminCommand.STOP))
        assert "orders need the admin token" in peer.hear(operator_messages.AdminReply).text
        peer.send(m.RankHello("s", "g", "guess", 0, WHOLE))
        assert "is not known (any more)" in peer.hear(m.Refused).reason
        peer.send(m.Hello(-5, "n", LAYOUT.fingerprint, "h", 1, "i", 0, 1))
        assert "island id -5 is not allowed" in peer.hear(m.Refused).reason
        peer.socket.send_multipart([frames.PREAMBLE, bytes(frames.BIG_HEADER_BYTES_MAX + 1)])
        peer.send(m.Heartbeat("s", "g", 1))
        assert isinstance(peer.hear_any(), m.Unknown), "a frame beyond every limit became a message"
        peer.close()
    told = status.decode((tmp_path / "status.json").read_bytes())
    assert told.bad_messages == len(MALFORMED) + 1
    assert told.stale_messages == len(replays) + 1
    assert "Traceback" not in syncer.text()


class BadMember:
    """Island 1: joins as an honest island does, then is not honest."""

    def __init__(self, address: str) -> None:
        self.control, self.bulk = Peer(address), Peer(address)
        self.control.send(m.Hello(1, "n", LAYOUT.fingerprint, "bad host", 1, "bad", 0, 1, LAYOUT))
        welcome = self.control.hear(m.Welcome)
        self.plan: FragmentPlan = welcome.plan
        self.session, self.generation = welcome.session, welcome.generation
        self.bulk.send(m.RankHello(self.session, self.generation, welcome.token, 0, WHOLE))
        self.bulk.hear(m.RankWelcome)
        self.control.hear(m.Joined)
        self.values = {name.fragment: name for name in welcome.values}

    def fetch(self, name: m.ValueName, first: int, count: int) -> None:
        self.bulk.send(m.Fetch(self.session, self.generation, 0, name, first, count))

    def offer(self, push: str, pull: m.Pull) -> None:
        anchor = self.values[pull.fragment]
        offer = m.PushOffer(self.session, self.generation, push, pull.t, pull.attempt, anchor, 3, 10**6, 3)
        self.control.send(offer)

    def push(self, value: float) -> m.Dropped:
        """Push a constant to the first pull that takes it; how it was dropped."""
        for number in range(1, 1000):
            pull = self.control.hear(m.Pull)
            self.meet_values(pull.fragment)
            push = f"{self.generation}.{number}"
            self.offer(push, pull)
            if self.granted(push):
                elements = PieceMap(LAYOUT, self.plan, WHOLE).elements(pull.fragment)
                payload = np.full(elements, value, np.float32).tobytes()
                sent: dict[str, Any] = {"session": self.session, "generation": self.generation, "upload": push}
                self.bulk.send(chunk(**sent, checksum=checksum(payload)), payload)
                return self.control.hear(m.Dropped)
        raise AssertionError("no push was ever admitted")

    def meet_values(self, fragment: int) -> None:
        """News of values that lie on the bulk link, until there is one of this fragment."""
        while (message := self.bulk.hear_any(PATIENCE_MS if fragment in self.values else WAIT_MS)) is not None:
            if isinstance(message, m.Published):
                self.values[message.name.fragment] = message.name

    def granted(self, push: str) -> bool:
        """Whether an offered push may be uploaded; a refusal grants nothing."""
        while (message := self.bulk.hear_any(PATIENCE_MS)) is not None:
            if isinstance(message, m.Window) and message.upload == push:
                return True
        return False

    def leave(self) -> None:
        self.control.send(m.Leave(self.session, self.generation, "enough"))
        self.control.send(m.Heartbeat(self.session, self.generation, 1))
        self.control.hear(m.Unknown)
        for peer in (self.control, self.bulk):
            peer.close()


def test_a_member_that_lies_hurts_nobody(tmp_path: Path) -> None:
    with good_run(tmp_path, "--quorum", "1", "--grace-cap-s", "0.05", step_s=0.15) as (_, address):
        bad = BadMember(address)
        bad.fetch(m.ValueName(99, 1, "x"), 0, 1)
        assert "fragment 99, which has no value" in bad.bulk.hear(m.Refused).reason
        present = bad.values.get(0) or m.ValueName(0, 0, "")
        for name, first, count in ((present, 0, 10**9), (present, 10**6, 1), (present, -1, 1)):
            bad.fetch(name, first, count)
            bad.bulk.hear(m.Refused)
        bad.bulk.send(chunk(session=bad.session, generation="somebody else's"), b"x")
        assert "join again" in bad.bulk.hear(m.Unknown).reason
        bad.bulk.send(m.RankHello(bad.session, bad.generation, "guess", 1, WHOLE))
        assert "the join token is not that of generation" in bad.bulk.hear(m.Refused).reason
        pull = bad.control.hear(m.Pull)
        bad.values.setdefault(pull.fragment, m.ValueName(pull.fragment, 0, "x"))
        bad.offer("somebody else's.1", pull)
        answer = bad.control.hear(m.PushAnswer)
        assert answer.outcome is m.Outcome.REFUSED and "must begin with the generation" in answer.reason
        bad.offer(f"{bad.generation}.1", m.Pull(bad.session, bad.generation, 10**6, pull.fragment, 1))
        assert "is not open" in bad.control.hear(m.PushAnswer).reason
        bad.leave()


def test_a_delta_that_is_not_finite_is_its_islands_own_loss(tmp_path: Path) -> None:
    with good_run(tmp_path, "--quorum", "1", "--grace-cap-s", "0.2", step_s=0.2) as (_, address):
        bad = BadMember(address)
        assert "the delta was not finite" in bad.push(np.nan).reason
        bad.leave()
