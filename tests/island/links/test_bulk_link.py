"""A rank's bulk link against a scripted syncer on a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import pytest
import zmq

from swift_diloco.core.formats import chunks, frames
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS
from swift_diloco.core.formats.messages import (
    Chunk,
    Contract,
    Fetch,
    Fetched,
    IslandMessage,
    Piece,
    Published,
    RankHello,
    SyncerMessage,
    ValueName,
    Window,
)
from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import make_layout
from swift_diloco.core.numbers import codec
from swift_diloco.core.numbers.digest import checksum
from swift_diloco.island.links.bulk_link import BulkLink
from swift_diloco.island.links.fetches import FETCH_CREDIT_CHUNKS, Pass
from swift_diloco.island.numbers.host_buffers import HostBuffers
from tests.fakes.quadratic import QuadraticModel, scaled
from tests.fakes.waiting import wait_until

T = TypeVar("T", bound=IslandMessage)
WAIT_MS = 5000
PASS = Pass("s", "g", "t")
V1, V2 = ValueName(0, 1, "a"), ValueName(0, 2, "b")

pytestmark = pytest.mark.net


class ScriptedSyncer:
    """A ROUTER that says what a test tells it to, and the link that talks to it."""

    def __init__(self, elements: int, fragments: int = 1) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        layout = make_layout(scaled(elements, tensors=fragments))
        model = QuadraticModel(0, 1, start=0.0, target=1.0, specs=layout.tensors)
        pieces = PieceMap(layout, plan_fragments(layout, fragments, "binpack"), model.boxes(layout))
        self.elements = pieces.elements(0)
        self.peer = b""
        self.link = BulkLink(f"tcp://127.0.0.1:{port}", 0, HostBuffers())
        self.link.start()
        self.link.bind(pieces)
        self.link.introduce(PASS, Contract(), [])

    def receive(self, kind: type[T]) -> tuple[T, frames.Buffer | None]:
        """The next message, which must be of this kind."""
        assert self.socket.poll(WAIT_MS), f"no {kind.__name__} within {WAIT_MS} ms"
        self.peer, *parts = self.socket.recv_multipart()
        message, payload = frames.decode_from_island(parts)
        assert isinstance(message, kind), message
        return message, payload

    def send(self, message: SyncerMessage, payload: frames.Buffer | None = None) -> None:
        self.socket.send_multipart([self.peer, *frames.encode(message, payload)])

    def send_piece(self, name: ValueName, index: int, value: float, *, damaged: bool = False) -> None:
        count = min(CHUNK_ELEMENTS, self.elements - index * CHUNK_ELEMENTS)
        payload = np.full(count, value, dtype=np.float32).tobytes()
        self.send(Piece("s", "g", name, index, checksum(payload) ^ damaged), payload)

    def close(self) -> None:
        self.link.close()
        self.socket.close(0)
        self.context.term()


@pytest.fixture
def syncer(request: pytest.FixtureRequest) -> Iterator[ScriptedSyncer]:
    scripted = ScriptedSyncer(getattr(request, "param", 3 * CHUNK_ELEMENTS))
    scripted.receive(RankHello)
    yield scripted
    scripted.close()


def test_an_upload_sends_exactly_the_granted_window(syncer: ScriptedSyncer) -> None:
    values = np.arange(syncer.elements, dtype=np.float32)
    syncer.link.offer("u", values)
    syncer.send(Window("s", "g", "u", 0, 1, 3))
    for index in (1, 2):
        chunk, payload = syncer.receive(Chunk)
        assert payload is not None and (chunk.upload, chunk.index) == ("u", index)
        expected = values[index * CHUNK_ELEMENTS : (index + 1) * CHUNK_ELEMENTS].tobytes()
        assert bytes(payload) == expected and chunk.checksum == checksum(expected)
    assert not syncer.socket.poll(50)


def test_a_window_granted_before_the_capture_is_kept_for_it(syncer: ScriptedSyncer) -> None:
    syncer.send(Window("s", "g", "u", 0, 0, 1))
    assert not syncer.socket.poll(50)
    syncer.link.offer("u", np.zeros(syncer.elements, dtype=np.float32))
    assert syncer.receive(Chunk)[0].index == 0


def test_a_published_value_is_fetched_and_can_be_reserved_and_taken(syncer: ScriptedSyncer) -> None:
    syncer.send(Published("s", "g", V1))
    fetch, _ = syncer.receive(Fetch)
    assert (fetch.name, fetch.first, fetch.count) == (V1, 0, 3)
    for index in range(3):
        assert not syncer.link.reserve(V1)
        syncer.send_piece(V1, index, float(index))
    syncer.receive(Fetched)
    assert syncer.link.reserve(V1) and not syncer.link.reserve(V2)
    taken = syncer.link.take(V1)
    assert taken[::CHUNK_ELEMENTS].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("syncer", [40 * CHUNK_ELEMENTS], indirect=True)
def test_no_more_chunks_are_asked_for_than_the_credit(syncer: ScriptedSyncer) -> None:
    syncer.send(Published("s", "g", V1))
    asked = 0
    while asked < FETCH_CREDIT_CHUNKS:
        fetch, _ = syncer.receive(Fetch)
        assert fetch.first == asked
        asked += fetch.count
    assert asked == FETCH_CREDIT_CHUNKS and not syncer.socket.poll(50)


def test_a_damaged_piece_is_asked_for_again(syncer: ScriptedSyncer) -> None:
    syncer.send(Published("s", "g", V1))
    syncer.receive(Fetch)
    syncer.send_piece(V1, 0, 1.0)
    syncer.send_piece(V1, 1, 1.0, damaged=True)
    again, _ = syncer.receive(Fetch)
    assert (again.first, again.count) == (1, 2)
    for index in (1, 2):
        syncer.send_piece(V1, index, 1.0)
    syncer.receive(Fetched)


def test_a_newer_value_replaces_the_one_being_fetched(syncer: ScriptedSyncer) -> None:
    syncer.send(Published("s", "g", V1))
    syncer.receive(Fetch)
    syncer.send(Published("s", "g", V2))
    assert syncer.receive(Fetch)[0].name == V2
    for index in range(3):
        syncer.send_piece(V1, index, 1.0)
        syncer.send_piece(V2, index, 2.0)
    syncer.receive(Fetched)
    assert syncer.link.reserve(V2)
    assert syncer.link.take(V2).tolist() == [2.0] * syncer.elements


def test_a_reserved_value_stays_although_a_newer_one_arrives(syncer: ScriptedSyncer) -> None:
    syncer.send(Published("s", "g", V1))
    syncer.receive(Fetch)
    for index in range(3):
        syncer.send_piece(V1, index, 1.0)
    syncer.receive(Fetched)
    assert syncer.link.reserve(V1)
    syncer.send(Published("s", "g", V2))
    syncer.receive(Fetch)
    assert syncer.link.take(V1)[0] == 1.0


def test_a_value_that_is_held_is_not_fetched(syncer: ScriptedSyncer) -> None:
    syncer.link.introduce(PASS, Contract(), [V1])
    syncer.receive(RankHello)
    syncer.send(Published("s", "g", V1))
    syncer.send(Published("s", "g", V2))
    assert syncer.receive(Fetch)[0].name == V2


def test_the_island_that_provides_the_initial_values_fetches_none(syncer: ScriptedSyncer) -> None:
    syncer.link.provides_init()
    wait_until(lambda: syncer.link._fetches._own_init, "its own values are given to the link")
    syncer.send(Published("s", "g", ValueName(0, 0, "z")))
    syncer.send(Published("s", "g", V1))
    assert syncer.receive(Fetch)[0].name == V1


def test_pieces_of_another_generation_are_not_taken(syncer: ScriptedSyncer) -> None:
    syncer.send(Published("s", "old", V1))
    syncer.send(Published("s", "g", V2))
    assert syncer.receive(Fetch)[0].name == V2


def test_a_peer_that_is_no_syncer_makes_the_link_open_again_and_say_why(syncer: ScriptedSyncer) -> None:
    first = syncer.peer
    syncer.socket.send_multipart([syncer.peer, b"GET / HTTP/1.1", b""])
    syncer.receive(RankHello)
    assert syncer.peer != first
    assert "does not begin with its magic" in syncer.link.trouble


BF16 = Contract(publish_encoding="bf16", delta_encoding="bf16")


def test_a_value_published_in_bf16_is_decoded_and_the_final_cut_is_fetched_exactly(syncer: ScriptedSyncer) -> None:
    syncer.link.introduce(PASS, BF16, [])
    syncer.receive(RankHello)
    syncer.send(Published("s", "g", V1))
    assert not syncer.receive(Fetch)[0].exact
    values = np.full(syncer.elements, 1.00048828125, np.float32)
    coarse = codec.encode(values[:CHUNK_ELEMENTS], chunks.Encoding.BF16)
    for index in range(3):
        syncer.send(Piece("s", "g", V1, index, checksum(coarse)), coarse.data)
    syncer.receive(Fetched)
    assert syncer.link.reserve(V1)
    assert set(syncer.link.take(V1)) == {1.0}

    syncer.link.fetch_exactly([V1])
    fetch, _ = syncer.receive(Fetch)
    assert fetch.exact and fetch.name == V1
    syncer.send(Piece("s", "g", V1, 0, checksum(coarse)), coarse.data)  # of a fetch before; not what is asked for
    exact = values[:CHUNK_ELEMENTS].tobytes()
    for index in range(3):
        assert not syncer.link.reserve(V1)
        syncer.send(Piece("s", "g", V1, index, checksum(exact), exact=True), exact)
    syncer.receive(Fetched)
    assert syncer.link.reserve(V1)
    assert (syncer.link.take(V1) == values).all()


def test_what_was_staged_coarsely_is_not_reserved_once_exact_values_are_wanted(syncer: ScriptedSyncer) -> None:
    syncer.link.introduce(PASS, BF16, [])
    syncer.receive(RankHello)
    syncer.send(Published("s", "g", V1))
    syncer.receive(Fetch)
    coarse = codec.encode(np.ones(CHUNK_ELEMENTS, np.float32), chunks.Encoding.BF16)
    for index in range(3):
        syncer.send(Piece("s", "g", V1, index, checksum(coarse)), coarse.data)
    syncer.receive(Fetched)
    syncer.link.fetch_exactly([V1])
    assert not syncer.link.reserve(V1)
    assert syncer.receive(Fetch)[0].exact


def test_a_piece_of_a_wrong_size_is_asked_for_again(syncer: ScriptedSyncer) -> None:
    syncer.send(Published("s", "g", V1))
    syncer.receive(Fetch)
    short = np.ones(10, np.float32).tobytes()
    syncer.send(Piece("s", "g", V1, 0, checksum(short)), short)
    assert syncer.receive(Fetch)[0].first == 0


def test_initial_values_travel_as_float32_and_deltas_in_their_encoding(syncer: ScriptedSyncer) -> None:
    syncer.link.introduce(PASS, BF16, [])
    syncer.receive(RankHello)
    values = np.full(syncer.elements, 1.00048828125, np.float32)
    for upload, fragment, size in (("init", None, 4), ("g.1", 0, 2)):
        syncer.link.offer(upload, values, fragment)
        syncer.send(Window("s", "g", upload, 0, 0, 1))
        _, payload = syncer.receive(Chunk)
        assert payload is not None and len(payload) == size * CHUNK_ELEMENTS


def test_a_redial_that_meets_the_same_anchor_settles_its_push_by_what_the_syncer_holds(syncer: ScriptedSyncer) -> None:
    lossy = Contract(delta_encoding="bf16", error_feedback=True)
    values = np.full(syncer.elements, 1.0029296875, np.float32)  # 3/8 of the way between two bf16 values

    def first_chunk_of(push: str) -> float:
        syncer.link.offer(push, values, 0)
        syncer.send(Window("s", "g", push, 0, 0, 1))
        _, payload = syncer.receive(Chunk)
        assert payload is not None
        decoded = np.empty(CHUNK_ELEMENTS, np.float32)
        codec.decode(payload, chunks.Encoding.BF16, decoded)
        return float(decoded[0])

    syncer.link.introduce(PASS, lossy, [V1])
    syncer.receive(RankHello)
    coarse = first_chunk_of("g.1")
    syncer.link.name_held(V1)  # the same values, named again: no install
    syncer.link.introduce(PASS, lossy, [V1], spent=[0])  # the answer was lost, the push is held
    syncer.receive(RankHello)
    assert first_chunk_of("g.2") != coarse, "what the first push lost is in the second"
