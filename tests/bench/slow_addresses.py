"""A slow network on one machine: addresses of this process that lead to another one, each at a rate of its own.

`python -m tests.bench.slow_addresses ADDRESS BYTES_PER_S COUNT` prints COUNT addresses, one a line, and relays until it
is ended. All connections to one address share its rate, in each direction. A process of its own, so that relaying takes
no time from whoever measures.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack

from swift_diloco.tools.bench.processes import end
from tests.fakes.proxy import Proxy


class SlowAddresses:
    """Addresses that lead to `address` at `bytes_per_s` each."""

    def __init__(self, address: str, bytes_per_s: float, count: int) -> None:
        self._command = [sys.executable, "-m", __name__, address, str(bytes_per_s), str(count)]
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


def main() -> None:
    """The process."""
    target, bytes_per_s, count = sys.argv[1:]
    with ExitStack() as stack:
        for _ in range(int(count)):
            proxy = stack.enter_context(Proxy(target))
            proxy.limit(float(bytes_per_s))
            print(proxy.address, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
