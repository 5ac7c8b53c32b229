"""How fast one rank pushes and fetches over loopback: `python -m tests.bench.bench_transfers [MiB]`.

The client is a thread of the same process, so the figure is a lower bound: both share one interpreter lock.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from swift_diloco.core import codec
from swift_diloco.core.codec import CHUNK_ELEMENTS
from swift_diloco.core.layout import Box, TensorSpec, make_layout, plan_fragments
from swift_diloco.core.messages import Fetch, Fetched, ValueName
from tests.syncer.served import SESSION, Client, column_cut, serving

COLUMNS = 4096


def main(mebibytes: int) -> None:
    """Measure whole boxes and column cuts."""
    layout = make_layout([TensorSpec("layers.0.weight", (mebibytes * CHUNK_ELEMENTS // COLUMNS, COLUMNS), "rda")])
    plan = plan_fragments(layout, 1, "binpack")
    for what, boxes in [
        ("whole tensor", (Box(0, (0, 0), layout.tensors[0].shape),)),
        ("column cut", column_cut(layout, 0)),
    ]:
        rest = tuple(b for b in column_cut(layout, 1)) if what == "column cut" else ()
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as world:
            cuts = [boxes, rest] if rest else [boxes]
            island = world.join("g", cuts, model=(layout, plan))
            values = np.random.default_rng(1).standard_normal(layout.elements).astype(np.float32)
            begin = time.perf_counter()
            (name,) = world.publish_initial(island, [values])
            push_s = time.perf_counter() - begin
            size = island.pieces(0).elements(0)
            begin = time.perf_counter()
            receive(island.bulk[0], name, codec.chunk_count(size))
            fetch_s = time.perf_counter() - begin
        pushed, fetched = values.nbytes / 1e9 / push_s, size * 4 / 1e9 / fetch_s
        print(f"{what}: push {pushed:.2f} GB/s (with the client's encoding and INIT), fetch {fetched:.2f} GB/s")


def receive(client: Client, name: ValueName, chunks: int, credit: int = 16) -> None:
    """Fetch all chunks with a window of credit, without looking at them."""
    asked = received = 0
    while received < chunks:
        while asked < chunks and asked - received <= credit - 4:
            count = min(4, chunks - asked)
            client.send(Fetch(SESSION, "g", 0, name, asked, count))
            asked += count
        client.socket.recv_multipart(copy=False)
        received += 1
    client.send(Fetched(SESSION, "g", 0, name))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
