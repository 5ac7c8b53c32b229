"""The syncer's socket: one ROUTER, its monitor, and a way for other threads to wake whoever polls it.

Knows frames and peers, not what messages mean. Used by one thread, except `wake`.

Invariants: a send never blocks; a peer that cannot be reached or does not read is reported, once, as gone; a message is
judged by size before it is parsed.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from swift_diloco.core.errors import UserError
from swift_diloco.core.formats import frames
from swift_diloco.core.formats.frames import BIG_HEADER_BYTES_MAX, FRAMES_MAX, Buffer
from swift_diloco.core.formats.messages import Piece, SyncerMessage
from syncer.events import Peer
from syncer.links.descriptors import Peers
from syncer.links.guard import Guard, PeerRole

QUEUE_MESSAGES_MAX = 1024
"""Messages to one peer in ZeroMQ's queue. Credit keeps bulk far below it (32 pieces); a peer that lets
so many control messages lie does not read any more."""

RECEIVED_MESSAGES_MAX = 64
"""Messages of one peer that wait to be taken: the credit of four uploads. A peer that sends without credit is held back
by TCP."""

BACKLOG_CONNECTIONS = 1024
"""Connections waiting to be accepted: all ranks of a large island dial at once."""

KEEPALIVE_IDLE_S = 60
"""Idle time before TCP asks whether the other machine is there; leases decide long before, this
only frees descriptors."""

LINGER_MS = 5000
"""How long the last messages may take to leave at exit."""

CURVE_IO_THREADS_MAX = 4
"""ZeroMQ's own threads where connections are encrypted: one does 0.8 GB/s (measured), and each connection has one."""

MAIL_FIRST_S = 2.0
"""Longest time for which mail comes before deadlines: what a thousand islands sent during a stall is read in less."""

RECEIVED_BATCH_MAX = 256
"""Messages taken between two looks at the rest of the server's work."""

WATCHED_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED


@dataclass(frozen=True)
class Arrived:
    """Frames from a peer, its routing id taken off."""

    peer: Peer
    frames: list[Buffer]
    role: PeerRole = PeerRole.ISLAND
    """What the key of the connection allows; without keys everybody may be an island."""


@dataclass(frozen=True)
class Gone:
    """A peer's connection is closed, or it does not read."""

    peer: Peer


class Endpoint:
    """Opened by `bind`, closed by `close`. With a guard every connection is encrypted and its key is known."""

    def __init__(self, guard: Guard | None = None) -> None:
        self._guard = guard
        self._peers = Peers()
        self._gone: deque[Gone] = deque()
        self._behind_since: float | None = None
        """When `arrivals` first left something lying, unless it has taken all since."""

    def bind(self, address: str) -> str:
        """Listen on `tcp://host:port` (port 0 or *: a free one); returns the address with its port."""
        io_threads = 1 if self._guard is None else min(os.cpu_count() or 1, CURVE_IO_THREADS_MAX)
        self._context = zmq.Context(io_threads=io_threads)
        self._router = router = self._context.socket(zmq.ROUTER)
        if self._guard is not None:
            self._guard.start(self._context)
            self._guard.protect(router)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.ROUTER_HANDOVER, 0)
        router.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES_MAX)
        router.setsockopt(zmq.RCVHWM, RECEIVED_MESSAGES_MAX)
        router.setsockopt(zmq.LINGER, LINGER_MS)
        router.setsockopt(zmq.BACKLOG, BACKLOG_CONNECTIONS)
        router.setsockopt(zmq.MAXMSGSIZE, BIG_HEADER_BYTES_MAX)
        router.setsockopt(zmq.IPV6, int("[" in address))
        router.setsockopt(zmq.TCP_KEEPALIVE, 1)
        router.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
        self._monitor = router.get_monitor_socket(WATCHED_EVENTS)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        try:
            router.bind(address.removesuffix(":0") + ":*" if address.endswith(":0") else address)
        except zmq.ZMQError as error:
            self.close()
            if error.errno == zmq.EADDRINUSE:
                raise UserError(f"{address} is in use by another process; choose another port with --bind") from None
            raise UserError(f"cannot listen on {address}: {error.strerror}; expected tcp://HOST:PORT") from None
        self._poller = zmq.Poller()
        for each in (router, self._monitor, self._wake_out):
            self._poller.register(each, zmq.POLLIN)
        return router.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        """Send what is queued, within `LINGER_MS`, and give the socket up."""
        self._router.disable_monitor()
        self._monitor.close(linger=0)
        self._router.close()
        self._wake_in.close()
        self._wake_out.close()
        if self._guard is not None:
            self._guard.close()
        self._context.term()

    def wake(self) -> None:
        """Make the running or next `wait` return at once. Any thread, and signal handlers."""
        try:
            self._wake_in.send(b"\0")
        except BlockingIOError:  # It is awake already: thousands of wakes lie in the pipe.
            return

    def wait(self, timeout_s: float) -> None:
        """Wait until something arrives, somebody wakes us, or the time is over."""
        if self._gone:
            return
        if dict(self._poller.poll(max(0, int(timeout_s * 1000 + 0.999)))).get(self._wake_out.fileno()):
            self._wake_out.recv(4096)

    def arrivals(self) -> Iterator[Arrived | Gone]:
        """What has arrived, without waiting. A peer's messages come before the news that it is gone."""
        for _ in range(RECEIVED_BATCH_MAX):
            received = self._receive()
            if received is None:
                break
            arrived, descriptor = received
            self._watch()
            if not self._peers.claim(arrived.peer, descriptor):
                self._gone.append(Gone(arrived.peer))
            yield arrived
        else:
            self._behind_since = time.monotonic() if self._behind_since is None else self._behind_since
            return  # More may lie there, also of peers that are gone.
        self._behind_since = None
        self._watch()
        while self._gone:
            yield self._gone.popleft()

    def caught_up(self, now: float) -> bool:
        """Whether all that had arrived is taken, so that a silence is one. Where more comes than can be taken, that is
        said after `MAIL_FIRST_S` all the same: deadlines must not wait for ever."""
        return self._behind_since is None or now - self._behind_since > MAIL_FIRST_S

    @property
    def connected(self) -> int:
        """Open connections."""
        return self._peers.connected

    def send(self, peer: Peer, message: SyncerMessage) -> None:
        """Queue a message. A peer that does not take it is gone."""
        self._queue(peer, frames.encode(message), track=False)

    def send_piece(self, peer: Peer, message: Piece, payload: Buffer) -> zmq.MessageTracker | None:
        """Queue a piece without copying the payload, which must not change until the tracker is done."""
        return self._queue(peer, frames.encode(message, payload), track=True)

    def _queue(self, peer: Peer, parts: list[Buffer], track: bool) -> zmq.MessageTracker | None:
        try:
            self._router.send(bytes.fromhex(peer), zmq.SNDMORE | zmq.NOBLOCK)
            for part in parts[:-1]:
                self._router.send(part, zmq.SNDMORE | zmq.NOBLOCK)
            return self._router.send(parts[-1], zmq.NOBLOCK, copy=not track, track=track)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            gone = Gone(peer)
            if gone not in self._gone:
                self._gone.append(gone)
            return None

    def _receive(self) -> tuple[Arrived, int | None] | None:
        try:
            first = self._router.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        parts: list[Buffer] = []
        more, descriptor, role = first.more, None, PeerRole.ISLAND
        while more:
            frame = self._router.recv(copy=False)
            more = frame.more
            if len(parts) <= FRAMES_MAX:  # One more than allowed is enough to be refused.
                parts.append(frame.buffer)
                descriptor = _descriptor_of(frame)
                if self._guard is not None and len(parts) == 1:
                    role = self._guard.ring.role(_key_of(frame))
        return Arrived(first.bytes.hex(), parts, role), descriptor

    def _watch(self) -> None:
        """Take what the monitor has to tell."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            gone = self._peers.noted(int(event["event"]), int(event["value"]))
            if gone is not None:
                self._gone.append(Gone(gone))


def _descriptor_of(frame: zmq.Frame) -> int | None:
    """The socket descriptor a frame came over, where ZeroMQ tells."""
    try:
        descriptor = frame.get(zmq.SRCFD)
    except (zmq.ZMQError, ValueError):
        return None
    return int(descriptor) if int(descriptor) >= 0 else None


def _key_of(frame: zmq.Frame) -> str:
    """The public key that the handler of handshakes gave the connection as its name."""
    return str(frame.get("User-Id"))
