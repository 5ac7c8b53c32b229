"""A slow network on one machine: addresses of this process that lead to another one, each at a rate of its own.

`python -m tests.bench.slow_addresses HOST:PORT BYTES_PER_S COUNT` prints COUNT addresses, one a line,
and relays until it is ended. All connections to one address share its rate, in each direction.

Invariant: little is buffered here, so that a sender feels the rate at once.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

from swift_diloco.tools.bench.processes import end

BLOCK_BYTES = 64 * 1024
"""Relayed at a time: 6 ms at 10 MB/s, so that a small message waits no longer for a large one."""

LATE_S = 0.1
"""A thread that was woken late may make up for so much: on a busy machine the rate would not be reached otherwise."""

SOCKET_BUFFER_BYTES = 256 * 1024
"""What the kernel may hold on each side of the proxy."""


class SlowAddresses:
    """Addresses that lead to `address` at `bytes_per_s` each."""

    def __init__(self, address: str, bytes_per_s: float, count: int) -> None:
        target = address.removeprefix("tcp://")
        self._command = [sys.executable, "-m", __name__, target, str(bytes_per_s), str(count)]
        self._count = count
        self.addresses: list[str] = []

    def __enter__(self) -> SlowAddresses:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.addresses = [self._process.stdout.readline().decode().strip() for _ in range(self._count)]
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        end(self._process)


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


def relay(source: socket.socket, target: socket.socket, pace: Pace) -> None:
    """Pass on what comes until one side closes."""
    block = memoryview(bytearray(BLOCK_BYTES))
    try:
        while size := source.recv_into(block):
            pace.wait(size)
            target.sendall(block[:size])
    except OSError:  # One of the two is gone: then both are.
        pass
    for each in (source, target):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue


def serve(listener: socket.socket, target: tuple[str, int], bytes_per_s: float) -> None:
    """Relay every connection to one address."""
    there, back = Pace(bytes_per_s), Pace(bytes_per_s)
    while True:
        near, _ = listener.accept()
        far = _socket()
        far.connect(target)
        for ends, pace in (((near, far), there), ((far, near), back)):
            threading.Thread(target=relay, args=(*ends, pace), daemon=True).start()


def _socket() -> socket.socket:
    made = socket.socket()
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        made.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
    return made


def main() -> None:
    """The process."""
    host, _, port = sys.argv[1].rpartition(":")
    for _ in range(int(sys.argv[3])):
        listener = _socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        print(f"tcp://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        threading.Thread(target=serve, args=(listener, (host, int(port)), float(sys.argv[2])), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
