"""The island's sockets: a DEALER on a thread of its own, and the control link of rank 0 on top of it.

A link knows how to reach the syncer again: whenever the connection breaks it opens a new socket with a new random
routing id (the syncer must never take it for the old one) and says so to its owner. It decides nothing; what was heard
is handed over.

Invariants: the socket is touched by the link's thread only; every queue is bounded; an error in the thread is raised
on the owner's next call, never lost.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from swift_diloco.core.errors import PeerError
from swift_diloco.core.files.key_files import CurveKeys
from swift_diloco.core.formats import frames
from swift_diloco.core.formats.messages import Chunk, IslandMessage

POLL_MS = 200
"""Longest sleep of a link's thread; timers (heartbeats) are this exact."""

QUEUE_MESSAGES_MAX = 4096
"""Most messages waiting in one direction of a link; more means that nobody reads, and the oldest generation is
given up."""

CLOSE_S = 5.0
"""How long closing waits for the thread and for what is still to be sent."""

RECONNECT_MS = 100
RECONNECT_MAX_MS = 2000
"""ZeroMQ's own back-off between attempts to connect."""

HANDSHAKE_RETRY_S = 2.0
"""Time between two attempts when the syncer, or what listens there, turned the handshake down."""

BURST_MESSAGES = 64
"""Messages taken from the socket before the thread looks at its timers again."""

_TURNED_DOWN = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "it does not know this island's key; "
    "the island's public key must be among those of the syncer's --curve-allow",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "the two sides do not agree on encryption; give --diloco_curve_key and "
    "--diloco_syncer_key exactly when the syncer has --curve-key, and its own public key",
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "it broke off without a word; with encryption, --diloco_syncer_key is "
    "most likely not that syncer's",
}
_LOST_EVENTS = int(zmq.EVENT_DISCONNECTED)
_WATCHED_EVENTS = _LOST_EVENTS | int(zmq.EVENT_HANDSHAKE_SUCCEEDED) | sum(_TURNED_DOWN)
"""A finished handshake wakes the thread, so that what waits for a connection is said at once."""


class Dealer:
    """One DEALER socket on its own thread. Subclasses override the `_on_…` methods, all called on that thread."""

    def __init__(self, address: str, name: str, keys: CurveKeys | None = None) -> None:
        self.address = address
        self.name = name
        self._keys = keys
        self._context = zmq.Context(1)
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_lock = threading.Lock()
        self._wake_address = f"inproc://wake-{secrets.token_hex(8)}"
        self._wake_in = self._context.socket(zmq.PAIR)
        self._wake_in.bind(self._wake_address)
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_out.connect(self._wake_address)
        self._socket: zmq.Socket[bytes]
        self._monitor: zmq.Socket[bytes]
        self._poller = zmq.Poller()
        self._opened = False
        self._closing = False
        self._connected = False
        self._turned_down = False
        self._reopen_at: float | None = None
        self._error: BaseException | None = None
        self.trouble = ""
        """The latest reason, in words, why the connection does not work; for people who wait for it."""
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    # -- owner's side --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the socket and begin to connect; returns at once."""
        self._thread.start()

    def check(self) -> None:
        """Raise what went wrong in the link's thread, if anything did."""
        if self._error is not None:
            raise PeerError(f"{self.name} to {self.address} failed: {self._error}") from self._error

    def post(self, command: Callable[[], None]) -> None:
        """Run `command` on the link's thread, soon and in order."""
        self._commands.append(command)
        with self._wake_lock:
            if not self._wake_out.closed:
                self._wake_out.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Send what is queued, end the thread, free the sockets. Idempotent, bounded by CLOSE_S."""
        if self._closing:
            return
        self._closing = True
        if self._thread.is_alive():
            self.post(lambda: None)
            self._thread.join(CLOSE_S)
        with self._wake_lock:
            self._wake_out.close(0)
        if not self._thread.is_alive():
            self._wake_in.close(0)
            self._context.term()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _guarded(self) -> None:
        try:
            self._open()
            self._poller.register(self._wake_in, zmq.POLLIN)
            while not self._closing or self._commands:
                self._turn()
        except Exception as error:
            self._error = error
        finally:
            self._shut(linger_ms=int(CLOSE_S * 1000))

    def _turn(self) -> None:
        ready = dict(self._poller.poll(POLL_MS))
        if self._wake_in in ready:
            while self._wake_in.poll(0):
                self._wake_in.recv()
        while self._commands:
            self._commands.popleft()()
        if self._socket in ready:
            self._drain_socket()
        if self._monitor in ready:
            self._drain_monitor()
        now = time.monotonic()
        if self._reopen_at is not None and now >= self._reopen_at:
            self._reopen()
        self._on_tick(now)

    def _drain_socket(self) -> None:
        for _ in range(BURST_MESSAGES):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                self._on_frames([part.buffer for part in parts])
            except PeerError as error:
                self.trouble = str(error)
                self._reopen()
                return

    def _drain_monitor(self) -> None:
        while self._monitor.poll(0):
            event = int(parse_monitor_message(self._monitor.recv_multipart())["event"])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected = True
                if self._turned_down:
                    self._turned_down, self.trouble = False, ""
            elif event in _TURNED_DOWN:
                self.trouble = f"the syncer at {self.address} turned the handshake down: {_TURNED_DOWN[event]}"
                self._turned_down, self._reopen_at = True, time.monotonic() + HANDSHAKE_RETRY_S
            elif self._connected:
                self._reopen()
                return
            else:
                self._never_connected()

    def _never_connected(self) -> None:
        """The other side closed the connection before the handshake was done. Where it has keys and takes others for
        ours, or we have none, that is all it says; ZeroMQ tries again."""
        if self._reopen_at is None:
            self.trouble = (
                f"{self.address} closed the connection before the handshake was done; if the syncer has --curve-key, "
                "check --diloco_curve_key and --diloco_syncer_key"
            )
            self._turned_down, self._reopen_at = True, time.monotonic() + HANDSHAKE_RETRY_S

    def _reopen(self) -> None:
        self._reopen_at, self._connected = None, False
        self._shut(linger_ms=0)
        self._open()
        self._on_lost()

    def _open(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        self._monitor = self._socket.get_monitor_socket(_WATCHED_EVENTS)
        self._opened = True
        self._socket.setsockopt(zmq.ROUTING_ID, b"i" + secrets.token_bytes(15))
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.IPV6, int("[" in self.address))
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES_MAX)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES_MAX)
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        if self._keys is not None:
            self._socket.setsockopt_string(zmq.CURVE_SECRETKEY, self._keys.own.secret)
            self._socket.setsockopt_string(zmq.CURVE_PUBLICKEY, self._keys.own.public)
            self._socket.setsockopt_string(zmq.CURVE_SERVERKEY, self._keys.server)
        self._socket.connect(self.address)
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def _shut(self, linger_ms: int) -> None:
        if not self._opened:
            return
        for socket in (self._socket, self._monitor):
            if socket in self._poller:
                self._poller.unregister(socket)
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)

    def _send(self, message: IslandMessage) -> bool:
        """Hand a message to ZeroMQ; False when there is no connection to take it."""
        try:
            self._socket.send_multipart(frames.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _send_bulk(self, message: Chunk, payload: frames.Buffer) -> zmq.MessageTracker | None:
        """The same without copying the payload, which must not change until the tracker is done; None when it
        was not sent."""
        try:
            parts = frames.encode(message, payload)
            return self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False, track=True)
        except zmq.Again:
            return None

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def _on_frames(self, parts: Sequence[frames.Buffer]) -> None:
        """A message arrived; `parts` are valid during the call only."""
        raise NotImplementedError

    def _on_lost(self) -> None:
        """The connection broke; a new socket is already connecting."""

    def _on_tick(self, now: float) -> None:
        """Called at least every POLL_MS with the monotonic clock (s)."""
