"""slow_addresses.py: a rate is kept."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.bench.slow_addresses import SlowAddresses


@pytest.mark.net
def test_a_slow_address_lets_no_more_through_than_its_rate() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with SlowAddresses(f"tcp://127.0.0.1:{port}", 1e6, 1) as slow, socket.socket() as client:
            host, _, near = slow.addresses[0].removeprefix("tcp://").rpartition(":")
            client.connect((host, int(near)))
            begin = time.perf_counter()
            threading.Thread(target=client.sendall, args=(bytes(300_000),), daemon=True).start()
            far, _ = listener.accept()
            left = 300_000
            with far:
                while left > 0:
                    left -= len(far.recv(left))
            assert time.perf_counter() - begin >= 0.19
