"""A TCP proxy in user space between islands and a syncer, which can freeze, delay, throttle, and cut at a given byte.

A frozen proxy is a network that drops packets: nothing arrives, nothing is reset. What a cut throws away is counted as
not passed on. Threads, because sockets that block are the plainest thing; one per direction of a connection.

Invariant: little is buffered here, so that a sender feels a rate at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from urllib.parse import urlsplit

READ_BYTES = 64 * 1024
CONNECT_S = 5.0
POLL_S = 0.05
"""A thread looks this often whether its connection is to end."""

SOCKET_BUFFER_BYTES = 256 * 1024
"""What the kernel may hold on each side of the proxy."""

LATE_S = 0.1
"""A thread that was woken late may make up for so much: on a busy machine a rate would not be reached otherwise."""

UP, DOWN = "up", "down"
"""To the syncer, and to the islands."""


class Pace:
    """Lets bytes pass at a rate. Shared by threads, in turns."""

    def __init__(self, bytes_per_s: float) -> None:
        self._seconds_per_byte = 1.0 / bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    def wait(self, size: int) -> None:
        """Until `size` bytes may have passed."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - LATE_S) + size * self._seconds_per_byte
            due = self._free_at
        time.sleep(max(0.0, due - now))


class Proxy:
    """A context manager; `address` is what islands are given."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.passed = {UP: 0, DOWN: 0}
        """Bytes passed on."""
        self.connections = 0
        """How many were accepted."""
        self.cuts = 0
        """How often `cut_after` fired."""
        self._delay_s = 0.0
        self._paces: dict[str, Pace] = {}
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._cut_at: dict[str, int] = {}
        self._open: set[socket.socket] = set()
        self._closed = False
        self._listener = _socket()  # a connection has the buffers of its listener
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._listener.settimeout(POLL_S)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._flows.set()
        self.cut()
        self._listener.close()

    # -- faults --------------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Nothing passes any more; connections stay, and new ones seem to work."""
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def delay(self, seconds: float) -> None:
        """The bytes of each read are passed on so much later."""
        self._delay_s = seconds

    def limit(self, bytes_per_s: float, *directions: str) -> None:
        """All connections together get no more through in each of these directions; without one, in both."""
        self._paces |= {each: Pace(bytes_per_s) for each in directions or (UP, DOWN)}

    def lead_to(self, target: str) -> None:
        """Connections to come go there."""
        self._target = target

    def cut(self) -> None:
        """Close every connection."""
        with self._lock:
            doomed, self._open = self._open, set()
        for one in doomed:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def cut_after(self, count: int, direction: str) -> None:
        """Close every connection once so many bytes more have passed in one direction. Once."""
        with self._lock:
            self._cut_at[direction] = self.passed[direction] + count

    # -- connections ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            parts = urlsplit(self._target)
            far = _socket()
            far.settimeout(CONNECT_S)
            try:
                far.connect((parts.hostname, parts.port))
            except OSError:
                far.close()
                near.close()
                continue
            self.connections += 1
            with self._lock:
                self._open |= {near, far}
            for one in (near, far):
                one.settimeout(POLL_S)
            for source, sink, direction in ((near, far, UP), (far, near, DOWN)):
                threading.Thread(target=self._pump, args=(source, sink, direction), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        try:
            while not self._closed:
                self._flows.wait()
                try:
                    data = source.recv(READ_BYTES)
                except TimeoutError:
                    continue
                if not data:
                    break
                self._flows.wait()
                self._wait_for(len(data), direction)
                data, last = self._share_of(data, direction)
                self._send(sink, data)
                if last:
                    self.cut()
        except OSError:
            pass
        for one in (source, sink):
            with self._lock:
                self._open.discard(one)
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _wait_for(self, count: int, direction: str) -> None:
        time.sleep(self._delay_s)
        if (pace := self._paces.get(direction)) is not None:
            pace.wait(count)

    def _share_of(self, data: bytes, direction: str) -> tuple[bytes, bool]:
        """What of the data may pass, and whether the connections are cut then."""
        with self._lock:
            end = self._cut_at.get(direction)
            last = end is not None and self.passed[direction] + len(data) >= end
            if last:
                assert end is not None
                data = data[: end - self.passed[direction]]
                del self._cut_at[direction]
                self.cuts += 1
            self.passed[direction] += len(data)
        return data, last

    def _send(self, sink: socket.socket, data: bytes) -> None:
        """`sendall` that bears the short timeout of the socket's other direction."""
        rest = memoryview(data)
        while rest and not self._closed:
            try:
                rest = rest[sink.send(rest) :]
            except TimeoutError:
                continue


def _socket() -> socket.socket:
    made = socket.socket()
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        made.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
    return made
