"""Raw ZeroMQ between two processes: what the transport alone moves.

`python -m swift_diloco.tools.bench.raw` is the other process: a ROUTER that sends or takes as many frames of 1 MiB
as it is asked for. Both sides send without copying and do not look at what they receive.
"""

from __future__ import annotations

import subprocess
import sys
import time
from types import TracebackType

import numpy as np
import zmq

from swift_diloco.tools.bench.processes import MIB, end

FRAMES_IN_FLIGHT_MAX = 16
"""As many as the product has in flight by its credit, so that both run under the same conditions."""

ANSWER_TIMEOUT_MS = 60_000

PUSH, FETCH, DONE, FRAME = b"push", b"fetch", b"done", b"frame"


class RawPeer:
    """The DEALER's side, and the process on the other."""

    def __enter__(self) -> RawPeer:
        self._process = subprocess.Popen([sys.executable, "-m", __name__], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        address = self._process.stdout.readline().decode().strip()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVTIMEO, ANSWER_TIMEOUT_MS)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, FRAMES_IN_FLIGHT_MAX)
        self._socket.setsockopt(zmq.RCVHWM, FRAMES_IN_FLIGHT_MAX)
        self._socket.connect(address)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._context.term()
        assert self._process.stdout is not None
        self._process.stdout.close()
        end(self._process)

    def push_s(self, frames: int) -> float:
        """Time to send so many frames and hear that they are there."""
        block = np.ones(MIB, np.uint8)
        begin = time.perf_counter()
        self._socket.send_multipart([PUSH, str(frames).encode()])
        for _ in range(frames):
            self._socket.send_multipart([FRAME, block.data], copy=False)
        assert self._socket.recv_multipart() == [DONE]
        return time.perf_counter() - begin

    def fetch_s(self, frames: int) -> float:
        """Time to ask for so many frames and take them."""
        begin = time.perf_counter()
        self._socket.send_multipart([FETCH, str(frames).encode()])
        for _ in range(frames):
            self._socket.recv_multipart(copy=False)
        return time.perf_counter() - begin


def serve() -> None:
    """The other process, until it is ended."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.SNDHWM, FRAMES_IN_FLIGHT_MAX)
    router.setsockopt(zmq.RCVHWM, FRAMES_IN_FLIGHT_MAX)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    print(f"tcp://127.0.0.1:{port}", flush=True)
    block = np.ones(MIB, np.uint8)
    while True:
        peer, order, frames = router.recv_multipart()
        if order == PUSH:
            for _ in range(int(frames)):
                router.recv_multipart(copy=False)
            router.send_multipart([peer, DONE])
        else:
            for _ in range(int(frames)):
                router.send_multipart([peer, FRAME, block.data], copy=False)


if __name__ == "__main__":
    serve()
