"""The syncer's shell: takes messages, asks the coordinator, performs what it wants done, and reports how that ended.

One thread does all of it, in a loop over one socket; long arithmetic runs on two more and comes back as an event. The
server decides nothing but what a bad message deserves: its sender is told and everybody else goes on.

Invariants: effects are performed one by one in the order given; an event is handled before the next message is taken;
the coordinator hears of a connection's end after everything that came over it.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar, assert_never

import msgspec

from swift_diloco.core.files.checkpoint_files import Intact
from swift_diloco.core.formats import frames, status
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.frames import WireError
from swift_diloco.core.formats.messages import Chunk, Fetch, Fetched, Published, Unknown, ValueName, Welcome
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminReply, AdminRequest
from swift_diloco.core.formats.status import RunStatus, Status
from swift_diloco.core.story.dump import told_living
from swift_diloco.core.story.recorder import Handles, Story
from syncer import events as ev
from syncer.events import Effect, Event, Peer
from syncer.files.status_file import StatusFile
from syncer.files.store import Store
from syncer.files.tape import Tape
from syncer.files.writer import Saver, Writer, events_or_raise, restore
from syncer.links.endpoint import Arrived, Endpoint
from syncer.links.fetches import PINNED_MAX, Fetches, FetchRules
from syncer.links.rank_links import RankLinks
from syncer.links.refusals import Complaints, Gate
from syncer.links.uploads import Uploads
from syncer.numbers.global_state import GlobalState, MergeResult, Value
from syncer.numbers.outer_step import Weighted

JOBS_MAX = 2
"""Merges computed at once: the pipeline's default. Their arithmetic is shared out over the cores anyway."""

IDLE_WAIT_S = 1.0
"""Longest wait of the loop, so that the status stays fresh."""

SENDING_WAIT_S = 0.001
"""Wait of the loop while pieces wait for room in ZeroMQ's queues."""

log = logging.getLogger("syncer")

Result = TypeVar("Result")


class Brain(Handles, Protocol):
    """What the server needs of the coordinator."""

    @property
    def next_wakeup(self) -> float | None:
        """When it wants `TimePassed`, on the clock of `now`; None: never."""
        ...

    def status(self) -> RunStatus:
        """What `status.json` tells of the run."""
        ...


@dataclass(frozen=True)
class Files:
    """What the server writes."""

    tape: Tape
    status: StatusFile
    address: str
    """Where the syncer listens, for the status."""
    store: Store | None = None
    """Where checkpoints go, if any are wanted."""


@dataclass(frozen=True)
class ServerRules:
    """What this life of the syncer keeps to."""

    session: str
    """Its random name."""
    gate: Gate = field(default_factory=Gate)
    """Who may give orders."""
    pinned_fragments_max: int = PINNED_MAX
    publish_encoding: Encoding = Encoding.F32
    orphan_timeout_s: float = math.inf
    """How long to go on without any connection."""


@dataclass(frozen=True)
class ServerEnd:
    """How the process ends."""

    code: int
    reason: str


class Server:
    """Serve with `run`, after `resume` where an earlier run goes on."""

    def __init__(self, brain: Brain, rules: ServerRules, state: GlobalState, endpoint: Endpoint, files: Files) -> None:
        session = rules.session
        self.story = Story("syncer", brain)  # what the coordinator did last
        self._brain = brain
        self._rules = rules
        self._session = session
        self._run = ""
        self._state = state
        self._endpoint = endpoint
        self._files = files
        self._links = RankLinks()
        self._uploads = Uploads(session, self._links, endpoint.send, state.buffers)
        fetch_rules = FetchRules(session, rules.pinned_fragments_max, rules.publish_encoding)
        self._fetches = Fetches(fetch_rules, self._links, state, endpoint, files.tape.write)
        self._events: deque[Event] = deque()
        self._completions: queue.SimpleQueue[Callable[[], list[Event]]] = queue.SimpleQueue()
        self._merging: dict[int, ev.Merge] = {}
        self._outcome: ServerEnd | None = None
        self._complaints = Complaints(session, endpoint.send)
        self._last_connected = float("-inf")
        self._sending = False
        self._writer = Writer(files.store, self._report, files.tape.sync) if files.store is not None else None
        self._saver = Saver(self._writer, state, self._uploads) if self._writer is not None else None

    def run(self) -> ServerEnd:
        """Serve until the coordinator says Exit. Raises what a job raised: that is our own fault."""
        self._last_connected = time.monotonic()
        self._jobs = ThreadPoolExecutor(JOBS_MAX, thread_name_prefix="merge")
        if self._writer is not None:
            self._writer.start()
        try:
            self._submit(self._state.warm_up, lambda _: [])
            while self._outcome is None:
                self._turn()
        finally:
            self._jobs.shutdown(cancel_futures=True)
        self._write_status(time.monotonic())
        return self._outcome

    def resume(self, intact: Intact) -> None:
        """Continue from a checkpoint. Before `run`."""
        self._run = intact.state.run
        restore(intact, self._state, self._uploads)
        self._events.append(ev.Restored(intact.state, intact.shape.layout, intact.shape.plan))
        self._handle_events()

    def request_stop(self) -> None:
        """Have the coordinator hear `StopRequested`. Any thread, and signal handlers."""
        self._completions.put(lambda: [ev.StopRequested()])
        self._endpoint.wake()

    def _report(self, event: Event | Exception) -> None:
        """Have the coordinator hear of something, or this thread raise it. Any thread."""
        self._completions.put(partial(events_or_raise, event))
        self._endpoint.wake()

    def _turn(self) -> None:
        """One round of the loop: wait, take what came, perform what follows."""
        now = time.monotonic()
        self._endpoint.wait(self._wait_s(now))
        for arrival in self._endpoint.arrivals():
            if isinstance(arrival, Arrived):
                self._take(arrival, time.monotonic())
            else:
                self._lose(arrival.peer)
            self._handle_events()
        while not self._completions.empty():
            self._events.extend(self._completions.get()())
            self._handle_events()
        now = time.monotonic()
        wakeup = self._brain.next_wakeup
        if wakeup is not None and now >= wakeup and self._endpoint.caught_up(now):
            self._events.append(ev.TimePassed())
        self._watch_orphanage(now)
        self._handle_events()
        self._uploads.grant()
        self._sending = self._fetches.pump()
        if self._files.status.due(now):
            self._write_status(now)

    def _wait_s(self, now: float) -> float:
        if self._sending:
            return SENDING_WAIT_S
        wakeup = self._brain.next_wakeup
        return IDLE_WAIT_S if wakeup is None else max(0.0, min(IDLE_WAIT_S, wakeup - now))

    def _handle_events(self) -> None:
        """Have the coordinator handle all events, and perform its effects."""
        while self._events and self._outcome is None:
            event = self._events.popleft()
            for effect in self.story.handle(event, now=time.monotonic()):
                self._perform(effect)

    # -----------------------------------------------------------------------------------------------------------------
    # What arrives
    # -----------------------------------------------------------------------------------------------------------------

    def _take(self, arrived: Arrived, now: float) -> None:
        try:
            message, payload = frames.decode_from_island(arrived.frames)
        except WireError as error:
            self._complaints.refuse(arrived.peer, str(error), now)
            return
        refusal = self._rules.gate.refusal(arrived.role, message)
        if isinstance(message, AdminRequest):
            self._take_order(arrived.peer, message, refusal, now)
            return
        if refusal is not None:
            self._complaints.refuse(arrived.peer, refusal, now)
            return
        if isinstance(message, Chunk | Fetch | Fetched):
            self._take_bulk(arrived.peer, message, payload, now)
        else:
            self._events.append(ev.Received(arrived.peer, message))

    def _take_order(self, peer: Peer, request: AdminRequest, refusal: str | None, now: float) -> None:
        """An operator asks. What the server does is its own to tell; the rest is the coordinator's."""
        if refusal is not None:
            self._complaints.refuse_order(peer, request, refusal, now)
        elif request.command in (AdminCommand.STATUS, AdminCommand.STORY):
            wants_story = request.command is AdminCommand.STORY
            text = told_living(self.story) if wants_story else status.encode(self._status()).decode()
            self._endpoint.send(peer, AdminReply(self._session, request.nonce, True, "", text))
        else:
            self._events.append(ev.Received(peer, request))

    def _take_bulk(
        self, peer: Peer, message: Chunk | Fetch | Fetched, payload: frames.Buffer | None, now: float
    ) -> None:
        link = None
        if message.session == self._session:
            link = self._links.find(peer, message.generation, message.rank)
        if link is None:
            self._complaints.refuse_stale(peer, message, now)
        elif isinstance(message, Chunk):
            assert payload is not None
            self._events.extend(self._uploads.chunk(link, message, payload, now))
        elif isinstance(message, Fetch):
            self._fetches.fetch(link, message)
        else:
            self._fetches.fetched(link, message)

    def _lose(self, peer: Peer) -> None:
        self._complaints.forget(peer)
        link = self._links.peer_gone(peer)
        if link is not None:
            self._uploads.link_lost(link)
            self._fetches.link_lost(peer)
        self._events.append(ev.PeerGone(peer))

    def _watch_orphanage(self, now: float) -> None:
        if self._endpoint.connected:
            self._last_connected = now
        elif now - self._last_connected > self._rules.orphan_timeout_s:
            log.warning("no island has been connected for %.0f s: stopping", self._rules.orphan_timeout_s)
            self._last_connected = now
            self._events.append(ev.StopRequested(signal=False))

    # -----------------------------------------------------------------------------------------------------------------
    # What is to be done
    # -----------------------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        match effect:
            case ev.Send(peer, message):
                if isinstance(message, Welcome):
                    self._links.welcomed(message.generation, peer)
                if isinstance(message, Unknown):
                    self._complaints.told_unknown()
                self._endpoint.send(peer, message)
            case ev.AdoptLayout(layout, plan):
                self._state.adopt_layout(layout, plan)
            case ev.RegisterRank():
                self._register(effect)
            case ev.ForgetGeneration(generation, reason):
                self._uploads.forget(generation, reason)
                self._fetches.forget(generation)
                self._links.forget(generation)
            case ev.OpenUpload():
                self._uploads.open(effect, self._state.elements(effect.fragment))
            case ev.DropUpload(upload, reason):
                self._uploads.drop(upload, reason)
            case ev.AdoptInit():
                self._adopt_init(effect)
            case ev.Merge():
                self._merge(effect)
            case ev.Commit(t, name, uploads):
                self._state.commit(t, name)
                self._uploads.release(uploads)
                self._announce([name])
                self._fetches.value_replaced()
            case ev.DiscardMerge(t, uploads):
                self._state.discard(t)
                self._merging.pop(t, None)
                self._uploads.release(uploads)
            case ev.AnnounceAll():
                self._announce(list(self._state.names))
            case ev.WriteCheckpoint() | ev.WriteFirst():
                assert self._saver is not None, "no checkpoint is wanted without a folder"
                self._saver.perform(effect)
            case ev.WriteTape(line):
                self._files.tape.write(line)
            case ev.Log(level, text):
                log.log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
            case ev.Exit(code, reason):
                self._outcome = ServerEnd(code, reason)
            case _:
                assert_never(effect)

    def _register(self, effect: ev.RegisterRank) -> None:
        layout, plan = self._state.layout, self._state.plan
        assert layout is not None and plan is not None, "a rank is registered before the layout"
        earlier = self._links.bulk_peer(effect.generation, effect.rank)
        if earlier is not None:
            self._fetches.link_lost(earlier)
        self._uploads.link_registered(self._links.register(effect, layout, plan))

    def _adopt_init(self, effect: ev.AdoptInit) -> None:
        uploads, self._run = effect.uploads, effect.run
        values = [self._uploads.values(name) for name in uploads]

        def adopted(initial: tuple[Value, ...]) -> list[Event]:
            self._state.adopt_init(initial)
            self._uploads.release(uploads)
            names = self._state.names
            if effect.announce:
                self._announce(list(names))
            return [ev.InitAdopted(names), *self._prepare(0)]

        self._submit(self._state.init_job(values), adopted)

    def _prepare(self, fragment: int) -> list[Event]:
        """Make memory ready for first merges, one fragment after the other, so that merges come between."""
        if fragment < len(self._state.names):
            self._submit(self._state.prepare_job(fragment), lambda _: self._prepare(fragment + 1))
        return []

    def _merge(self, effect: ev.Merge) -> None:
        pushes = [
            # Contributions come in the order of island ids, an island's carried one first: the number keeps that order.
            Weighted(each.island, each.weight, self._uploads.delta(each.upload), number)
            for number, each in enumerate(effect.contributions)
        ]
        self._merging[effect.t] = effect

        def merged(result: MergeResult) -> list[Event]:
            if self._merging.get(effect.t) is not effect:
                return []  # Discarded meanwhile.
            del self._merging[effect.t]
            self._state.keep(effect.t, result)
            outcome = result.outcome
            return [
                ev.MergeFinished(
                    effect.t, effect.attempt, result.digest, not outcome.void, outcome.offenders, result.merge_s
                )
            ]

        self._submit(self._state.merge_job(effect.fragment, pushes), merged)

    def _submit(self, job: Callable[[], Result], ended: Callable[[Result], list[Event]]) -> None:
        """Run a job on another thread; `ended` is called with its result on this one."""

        def done(future: Future[Result]) -> None:
            self._completions.put(lambda: ended(future.result()))
            self._endpoint.wake()

        self._jobs.submit(job).add_done_callback(done)

    def _announce(self, names: list[ValueName]) -> None:
        for generation, peer in self._links.everybody():
            for name in names:
                self._endpoint.send(peer, Published(self._session, generation, name, self._run))

    def _write_status(self, now: float) -> None:
        self._files.status.write(self._status(), now)

    def _status(self) -> Status:
        return Status(
            **msgspec.structs.asdict(self._brain.status()),
            time=round(time.time(), 3),
            bytes_pushed=self._uploads.payload_bytes,
            bytes_fetched=self._fetches.payload_bytes,
            bad_messages=self._complaints.bad,
            stale_messages=self._complaints.stale,
            address=self._files.address,
            pid=os.getpid(),
        )
