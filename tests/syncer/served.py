"""A real server on a real socket, with a scripted coordinator: what tests of the shell are written with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import zmq
from numpy.typing import NDArray

from swift_diloco.core.formats import chunks, frames
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS, Encoding
from swift_diloco.core.formats.messages import (
    Chunk,
    Contract,
    Hello,
    IslandMessage,
    Piece,
    Published,
    RankHello,
    RankWelcome,
    SyncerMessage,
    ValueName,
    Welcome,
    Window,
)
from swift_diloco.core.formats.status import CheckpointStatus, RunStatus
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.fragments import FragmentPlan, plan_fragments
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout, TensorSpec, make_layout
from swift_diloco.core.numbers import codec, kernels
from swift_diloco.core.numbers.digest import checksum
from swift_diloco.core.numbers.outer_optimizer import OuterSettings
from syncer import events as ev
from syncer.events import Effect, Event, Peer
from syncer.files.status_file import StatusFile
from syncer.files.tape import Tape
from syncer.links.endpoint import Endpoint
from syncer.numbers.global_state import GlobalState
from syncer.server import Files, Server, ServerEnd, ServerRules

Kind = TypeVar("Kind")
SESSION = "session-1"
RULES = ServerRules(SESSION)
WAIT_S = 10.0

LAYOUT = make_layout(
    [
        TensorSpec("embedding.word_embeddings.weight", (600, 500), "avg"),
        TensorSpec("decoder.layers.0.mlp.linear_fc1.weight", (64, 40), "rda"),
        TensorSpec("decoder.layers.0.mlp.linear_fc1.bias", (64,), "rda"),
        TensorSpec("decoder.layers.1.mlp.linear_fc1.weight", (64, 40), "rda"),
    ]
)
PLAN = plan_fragments(LAYOUT, 2, "binpack")
BIG = next(f for f, group in enumerate(PLAN.fragments) if LAYOUT.index("embedding.word_embeddings.weight") in group)
"""The fragment with the embedding: 300 000 elements, two chunks."""
SMALL = 1 - BIG


def column_cut(layout: Layout, rank: int) -> tuple[Box, ...]:
    """The boxes of rank 0 or 1 of an island that cuts every matrix by columns, like tensor parallelism; rank 0
    has the vectors."""
    boxes = []
    for i, spec in enumerate(layout.tensors):
        if len(spec.shape) == 2:
            rows, columns = spec.shape
            half = columns // 2
            boxes.append(Box(i, (0, rank * half), (rows, half)))
        elif rank == 0:
            boxes.append(Box(i, (0,), spec.shape))
    return tuple(boxes)


def whole(layout: Layout) -> tuple[Box, ...]:
    """The boxes of an island of one rank."""
    return tuple(Box(i, (0,) * len(spec.shape), spec.shape) for i, spec in enumerate(layout.tensors))


class Script:
    """A coordinator that decides nothing: it notes events, and answers with the effects a test has put there."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._heard = threading.Condition()
        self._effects: list[list[Effect]] = []
        self.next_wakeup: float | None = None

    def wake_at(self, due: float | None) -> None:
        """What the server is told from the next event on."""
        self.next_wakeup = due

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        with self._heard:
            self.events.append(event)
            self._heard.notify_all()
            if isinstance(event, ev.StopRequested):
                taken = self._effects.pop(0) if self._effects else []
                self._heard.notify_all()
                return taken
        return []

    def status(self) -> RunStatus:
        return RunStatus(
            phase="testing",
            run="run",
            t=3,
            versions=(),
            open=(),
            members=(),
            late=(),
            checkpoint=CheckpointStatus(None, "", ""),
            joining=(),
            waiting_for="the test",
        )

    def push(self, effects: list[Effect]) -> None:
        with self._heard:
            self._effects.append(effects)

    def taken(self, within_s: float) -> bool:
        """Whether the server has what was pushed, now or soon; it performs that before it looks at another message."""
        with self._heard:
            return self._heard.wait_for(lambda: not self._effects, within_s)

    def wait(self, wanted: Callable[[Event], bool], within_s: float = WAIT_S) -> Event:
        """The first event that is wanted, now or soon."""
        with self._heard:
            found: list[Event] = []

            def look() -> bool:
                found[:] = [event for event in self.events if wanted(event)]
                return bool(found)

            assert self._heard.wait_for(look, within_s), f"not among {self.events}"
            return found[0]

    def wait_for(self, kind: type[Kind]) -> Kind:
        found = self.wait(lambda event: isinstance(event, kind))
        assert isinstance(found, kind)
        return found


@dataclass
class Client:
    """One DEALER that a test drives by hand."""

    address: str
    socket: zmq.Socket[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(self.address)

    def send(self, message: IslandMessage, payload: frames.Buffer | None = None) -> None:
        self.socket.send_multipart(frames.encode(message, payload))

    def send_raw(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts)

    def receive(self) -> tuple[SyncerMessage, frames.Buffer | None]:
        assert self.socket.poll(int(WAIT_S * 1000)), "nothing came"
        return frames.decode_from_syncer(self.socket.recv_multipart())

    def expect(self, kind: type[Kind]) -> Kind:
        """The next message, which must be of this kind."""
        message, _ = self.receive()
        assert isinstance(message, kind), message
        return message

    def silent(self) -> bool:
        """Whether nothing lies there now."""
        return not self.socket.poll(0)

    def close(self) -> None:
        self.socket.close()
        self.context.term()


class World:
    """A serving server, its scripted coordinator and the clients of a test."""

    def __init__(self, folder: Path, outer: OuterSettings, rules: ServerRules = RULES) -> None:
        self.folder = folder
        self.script = Script()
        self.state = GlobalState(outer, average_only=False)
        self.endpoint = Endpoint()
        self.address = self.endpoint.bind("tcp://127.0.0.1:*")
        self.clients: list[Client] = []
        self.islands: list[Island] = []
        self.outcome: ServerEnd | None = None
        self.error: BaseException | None = None
        self._tape = Tape(folder / "tape.jsonl")
        files = Files(self._tape, StatusFile(folder / "status.json"), self.address)
        self.server = Server(self.script, rules, self.state, self.endpoint, files)
        self._thread = threading.Thread(target=self._serve)

    def start(self) -> None:
        self._tape.__enter__()
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.outcome = self.server.run()
        except BaseException as error:
            self.error = error

    def wait_ended(self) -> None:
        """Until the server has ended by itself."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the server still serves"

    def stop(self) -> None:
        self.perform(ev.Exit(0, "the test is over"))
        self._thread.join(WAIT_S)
        for client in self.clients:
            client.close()
        self.endpoint.close()
        self._tape.__exit__()
        if self.error is not None:
            raise self.error

    def client(self) -> Client:
        self.clients.append(Client(self.address))
        return self.clients[-1]

    def perform(self, *effects: Effect) -> None:
        """Have the server perform effects, one after the other."""
        self.script.push(list(effects))
        self.server.request_stop()
        deadline = time.monotonic() + WAIT_S
        while self._thread.is_alive() and not self.script.taken(within_s=0.05):
            assert time.monotonic() < deadline, "the server does not take effects"

    def peer_of(self, client: Client) -> Peer:
        """The name under which the server knows a client: it says Hello and is heard."""
        nonce = f"nonce-{time.monotonic_ns()}"
        client.send(hello(nonce))
        event = self.script.wait(
            lambda e: isinstance(e, ev.Received) and isinstance(e.message, Hello) and e.message.nonce == nonce
        )
        assert isinstance(event, ev.Received)
        return event.peer

    def join(
        self,
        generation: str,
        boxes: list[tuple[Box, ...]],
        island: int = 0,
        model: tuple[Layout, FragmentPlan] = (LAYOUT, PLAN),
    ) -> Island:
        """An island with one control link and one bulk link per rank, as the coordinator would admit it."""
        control, bulk = self.client(), [self.client() for _ in boxes]
        self.perform(
            ev.AdoptLayout(*model) if self.state.layout is None else ev.Log("debug", "again"),
            ev.Send(self.peer_of(control), Welcome(SESSION, generation, "nonce", "token", "run", Contract(), model[1])),
        )
        control.expect(Welcome)
        joined = Island(self, generation, island, control, bulk, boxes, model)
        self.islands.append(joined)
        for rank in range(len(boxes)):
            joined.register(rank)
        return joined

    def publish_initial(self, island: Island, values: list[NDArray[np.float32]]) -> tuple[ValueName, ...]:
        """INIT by an island; returns the names of version 0."""
        uploads = tuple(f"init-{fragment}" for fragment in range(len(values)))
        for fragment, upload in enumerate(uploads):
            self.perform(ev.OpenUpload(upload, island.generation, fragment, Encoding.F32))
            island.upload(upload, fragment, values[fragment])
        self.perform(ev.AdoptInit(uploads))
        names = self.script.wait_for(ev.InitAdopted).values
        for name in names:
            self.expect_published(name)
        return names

    def expect_published(self, name: ValueName) -> None:
        """Every link of every island is told of a value."""
        for island in self.islands:
            for client in (island.control, *island.bulk):
                assert client.expect(Published).name == name


@dataclass
class Island:
    """The links of an island, driven by hand."""

    world: World
    generation: str
    number: int
    control: Client
    bulk: list[Client]
    boxes: list[tuple[Box, ...]]
    model: tuple[Layout, FragmentPlan]
    known_peers: set[Peer] = field(default_factory=set)

    def register(self, rank: int) -> None:
        """Introduce a rank's bulk link."""
        client = self.bulk[rank]
        client.send(RankHello(SESSION, self.generation, "token", rank, self.boxes[rank]))
        event = self.world.script.wait(
            lambda e: (
                isinstance(e, ev.Received)
                and isinstance(e.message, RankHello)
                and (e.message.generation, e.message.rank) == (self.generation, rank)
                and e.peer not in self.known_peers
            )
        )
        assert isinstance(event, ev.Received)
        self.known_peers.add(event.peer)
        self.world.perform(
            ev.RegisterRank(self.generation, self.number, rank, event.peer, self.boxes[rank]),
            ev.Send(event.peer, RankWelcome(SESSION, self.generation, rank)),
        )
        client.expect(RankWelcome)

    def pieces(self, rank: int) -> PieceMap:
        return PieceMap(*self.model, self.boxes[rank])

    def chunk(self, rank: int, upload: str, index: int, stream: NDArray[np.float32]) -> tuple[Chunk, memoryview]:
        """One chunk message of a rank's stream."""
        part = stream[index * CHUNK_ELEMENTS : (index + 1) * CHUNK_ELEMENTS]
        payload = codec.encode(part, Encoding.F32)
        return Chunk(SESSION, self.generation, upload, rank, index, checksum(payload)), payload.data

    def upload(self, name: str, fragment: int, values: NDArray[np.float32]) -> None:
        """Send flat values of a fragment, each rank its own stream, as windows allow, until all is there."""
        for rank, client in enumerate(self.bulk):
            stream = reference_stream(self.pieces(rank), fragment, values)
            sent = 0
            while sent < chunks.chunk_count(stream.size):
                window = client.expect(Window)
                assert (window.upload, window.first) == (name, sent), window
                for index in range(window.first, window.upto):
                    client.send(*self.chunk(rank, name, index, stream))
                sent = window.upto
        self.world.script.wait(lambda e: isinstance(e, ev.UploadCompleted) and e.upload == name)

    def receive_stream(self, rank: int, name: ValueName) -> NDArray[np.float32]:
        """The pieces of a value that a rank asked for, all of them, checked."""
        size = self.pieces(rank).elements(name.fragment)
        out = np.full(size, np.nan, np.float32)
        for index in range(chunks.chunk_count(size)):
            message, payload = self.bulk[rank].receive()
            assert isinstance(message, Piece) and payload is not None, message
            assert (message.name, message.index, message.checksum) == (name, index, checksum(payload))
            part = out[index * CHUNK_ELEMENTS : (index + 1) * CHUNK_ELEMENTS]
            codec.decode(payload, Encoding.F32, part)
        return out


def reference_stream(pieces: PieceMap, fragment: int, flat: NDArray[np.float32]) -> NDArray[np.float32]:
    """A rank's stream of flat values, by plain indexing of whole tensors: the reference of the server's copies."""
    tensors, offset = {}, 0
    for tensor in pieces.plan.fragments[fragment]:
        spec = pieces.layout.tensors[tensor]
        tensors[tensor] = flat[offset : offset + spec.elements].reshape(spec.shape)
        offset += spec.elements
    boxes = pieces.fragment_boxes(fragment)
    parts = [
        tensors[box.tensor][tuple(slice(s, s + n) for s, n in zip(box.start, box.shape, strict=True))].ravel()
        for box in boxes
    ]
    return np.concatenate([np.empty(0, np.float32), *parts])


def random_values(seed: int) -> list[NDArray[np.float32]]:
    """Flat values of each fragment."""
    generator = np.random.default_rng(seed)
    return [
        generator.standard_normal(sum(LAYOUT.tensors[i].elements for i in group)).astype(np.float32)
        for group in PLAN.fragments
    ]


def hello(nonce: str = "nonce") -> Hello:
    """A Hello that nobody looks into."""
    return Hello(0, nonce, LAYOUT.fingerprint, "host", 1, "instance", 0, 1)


@contextmanager
def serving(folder: Path, outer: OuterSettings | None = None, rules: ServerRules = RULES) -> Iterator[World]:
    """A world that serves until the block ends; what went wrong in the server fails the test."""
    kernels.warm_up()  # compiling is no part of any wait
    world = World(folder, outer or OuterSettings(1.0), rules)
    world.start()
    try:
        yield world
    finally:
        world.stop()
