"""Rank 0's control link: heartbeats, an inbox with a bound, and a Hello that waits for a connection."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq

from swift_diloco.core.errors import PeerError
from swift_diloco.core.formats import frames
from swift_diloco.core.formats.messages import Heartbeat, Hello, Joined, Leave
from swift_diloco.island.links.control_link import ControlLink
from swift_diloco.island.links.dealer import QUEUE_MESSAGES_MAX
from swift_diloco.tools.quickstart.jobs.commands import free_port
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.net

WAIT_S = 10.0


@pytest.fixture
def router() -> Iterator[tuple[zmq.Socket[bytes], str]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    yield socket, f"tcp://127.0.0.1:{port}"
    socket.close(0)
    context.term()


def heard(socket: zmq.Socket[bytes]) -> tuple[bytes, object]:
    assert socket.poll(int(WAIT_S * 1000)), "nothing came"
    peer, *parts = socket.recv_multipart()
    return peer, frames.decode_from_island(parts)[0]


def test_heartbeats_tell_the_step_and_end_with_the_generation(router: tuple[zmq.Socket[bytes], str]) -> None:
    socket, address = router
    link = ControlLink(address, heartbeat_s=0.02, stall_s=0)
    link.start()
    try:
        link.progressed(7)
        link.joined("s", "g")
        peer, message = heard(socket)
        assert message == Heartbeat("s", "g", 7)
        socket.send_multipart([peer, *frames.encode(Joined("s", "g"))])
        wait_until(lambda: link.wait(0), "a message or news")
        assert link.drain() == [bytes(frames.encode(Joined("s", "g"))[1])]
        socket.send_multipart([peer, b"nonsense", b"x"])  # the link breaks off, and no heartbeat belongs to it any more
        wait_until(lambda: link.drain() == [None], "the news of the lost link")
        assert "does not begin with its magic" in link.trouble
    finally:
        link.close()


def test_heartbeats_stop_when_training_stalls(router: tuple[zmq.Socket[bytes], str]) -> None:
    socket, address = router
    link = ControlLink(address, heartbeat_s=0.01, stall_s=0.2)
    link.start()
    try:
        link.joined("s", "g")
        heard(socket)
        deadline = time.monotonic() + WAIT_S
        while socket.poll(250):
            socket.recv_multipart()
            assert time.monotonic() < deadline, "heartbeats go on"
    finally:
        link.close()


def test_only_the_latest_hello_waits_for_a_connection() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    link = ControlLink(address, heartbeat_s=0, stall_s=0)
    link.start()
    try:
        for nonce in ("first", "second"):
            link.send(Hello(0, nonce, "f", "host", 1, "i", 0, 1))
        link.send(Leave("s", "g", "its generation is over"))
        with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
            socket.bind(address)
            _, message = heard(socket)
            assert isinstance(message, Hello) and message.nonce == "second"
            link.send(Leave("s", "g", "next"))
            assert heard(socket)[1] == Leave("s", "g", "next"), "what was dropped does not come later"
    finally:
        link.close()


def test_trainer_that_takes_nothing_for_too_long_is_told_instead_of_a_growing_inbox() -> None:
    link = ControlLink("tcp://127.0.0.1:5", heartbeat_s=0, stall_s=0)
    try:
        link._on_lost()
        link._on_lost()
        assert link.wait(0) and link.drain() == [None], "it broke again before anybody looked"
        parts = [bytes(part) for part in frames.encode(Joined("s", "g"))]
        for _ in range(QUEUE_MESSAGES_MAX):
            link._on_frames(parts)
        with pytest.raises(PeerError, match=f"{QUEUE_MESSAGES_MAX} control messages wait for a step boundary"):
            link._on_frames(parts)
        assert link.drain() == [parts[1]] * QUEUE_MESSAGES_MAX and not link.wait(0)
    finally:
        link.close()
