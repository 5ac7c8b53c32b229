"""The syncer's socket: who is told what of a peer, and how a wait ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from swift_diloco.core.errors import UserError
from swift_diloco.core.formats import frames
from swift_diloco.core.formats.frames import FRAMES_MAX
from swift_diloco.core.formats.messages import Leave, Piece, Refused, ValueName
from syncer.links import endpoint as endpoints
from syncer.links.endpoint import Arrived, Endpoint, Gone
from tests.syncer.served import WAIT_S, Client

pytestmark = pytest.mark.net


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    made.bind("tcp://127.0.0.1:0")
    yield made
    made.close()


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[Client]:
    made = Client(endpoint._router.getsockopt_string(zmq.LAST_ENDPOINT))
    yield made
    made.close()


def next_of(endpoint: Endpoint) -> Arrived | Gone:
    """What arrives next."""
    while True:
        endpoint.wait(WAIT_S)
        for arrived in endpoint.arrivals():
            return arrived


def heard(endpoint: Endpoint, client: Client) -> Arrived:
    """The client says something, which arrives."""
    client.send(Leave("s", "g", "hello"))
    arrived = next_of(endpoint)
    assert isinstance(arrived, Arrived)
    assert frames.decode_from_island(arrived.frames) == (Leave("s", "g", "hello"), None)
    return arrived


def test_message_and_piece_reach_the_peer_that_was_heard(endpoint: Endpoint, client: Client) -> None:
    peer = heard(endpoint, client).peer
    assert endpoint.connected == 1
    endpoint.send(peer, Refused("s", "g", "no"))
    assert client.receive() == (Refused("s", "g", "no"), None)
    piece = Piece("s", "g", ValueName(0, 0, "d"), 0, 1)
    tracker = endpoint.send_piece(peer, piece, memoryview(b"12345678"))
    message, payload = client.receive()
    assert message == piece and payload is not None and bytes(payload) == b"12345678"
    assert tracker is not None
    tracker.wait(WAIT_S)


def test_peer_that_nobody_knows_is_told_as_gone_once(endpoint: Endpoint) -> None:
    for _ in range(3):
        endpoint.send("00ff", Refused("s", "g", "no"))
    endpoint.wait(WAIT_S)
    assert list(endpoint.arrivals()) == [Gone("00ff")] and list(endpoint.arrivals()) == []


def test_closed_connection_is_told_after_its_last_message(endpoint: Endpoint, client: Client) -> None:
    peer = heard(endpoint, client).peer
    client.socket.setsockopt(zmq.LINGER, -1)
    client.send(Leave("s", "g", "the last word"))
    client.socket.close()
    last = next_of(endpoint)
    assert isinstance(last, Arrived) and last.peer == peer
    assert next_of(endpoint) == Gone(peer) and endpoint.connected == 0


def test_message_of_too_many_frames_is_cut_to_one_too_many(endpoint: Endpoint, client: Client) -> None:
    client.send_raw(*[b"x"] * (FRAMES_MAX + 5))
    arrived = next_of(endpoint)
    assert isinstance(arrived, Arrived) and [bytes(part) for part in arrived.frames] == [b"x"] * (FRAMES_MAX + 1)


def test_looks_at_the_rest_of_the_work_come_between_batches(
    monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint, client: Client
) -> None:
    peer = heard(endpoint, client).peer
    monkeypatch.setattr(endpoints, "RECEIVED_BATCH_MAX", 2)
    endpoint.send("00ff", Refused("s", "g", "no"))
    for _ in range(3):
        client.send(Leave("s", "g", ""))
    batches: list[list[Arrived | Gone]] = []
    while sum(map(len, batches)) < 4:
        batches.append(list(endpoint.arrivals()))
    assert all(len(batch) <= 2 for batch in batches[:-1])
    told = [each for batch in batches for each in batch]
    assert [each.peer for each in told if isinstance(each, Arrived)] == [peer] * 3 and told.count(Gone("00ff")) == 1


def test_waiting_ends_when_another_thread_wakes(endpoint: Endpoint) -> None:
    waiting = threading.Thread(target=endpoint.wait, args=(10 * WAIT_S,), daemon=True)
    waiting.start()
    endpoint.wake()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    for _ in range(100_000):  # more than the pipe takes: it is awake already
        endpoint.wake()
    endpoint.wait(WAIT_S)


def test_address_in_use_and_what_is_no_address_are_the_users_mistakes(endpoint: Endpoint) -> None:
    address = endpoint._router.getsockopt_string(zmq.LAST_ENDPOINT)
    with pytest.raises(UserError, match=f"{address} is in use by another process; choose another port with --bind"):
        Endpoint().bind(address)
    with pytest.raises(UserError, match="cannot listen on tcp://nonsense: .*; expected tcp://HOST:PORT"):
        Endpoint().bind("tcp://nonsense")


def test_a_silence_is_one_only_when_all_that_arrived_was_taken_or_too_much_comes(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = time.monotonic()
    monkeypatch.setattr(endpoints, "RECEIVED_BATCH_MAX", 0)  # more lies there than is taken at once
    for _ in range(2):
        assert list(endpoint.arrivals()) == []
        assert not endpoint.caught_up(begun)
    assert endpoint.caught_up(time.monotonic() + endpoints.MAIL_FIRST_S + 0.1)
    monkeypatch.setattr(endpoints, "RECEIVED_BATCH_MAX", 256)
    assert list(endpoint.arrivals()) == []
    assert endpoint.caught_up(begun)
