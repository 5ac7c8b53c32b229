"""How long training stands still for a full-model sync of two islands of this machine.

Each island is a process with the real island shell around a model that is one flat array per fragment; its training is
a sleep, as the processor is idle while an accelerator works. Every fragment is pulled, pushed, merged, published and
installed once per sync; what counts is the time spent inside step boundaries. The ceiling is what no design that copies
out what was trained and copies in what was merged can go below: one copy of the model each way, measured in the same
process between two boundaries.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from swift_diloco.core.errors import DilocoError
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout, TensorSpec
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.island.island import Island, JobFacts
from swift_diloco.island.ranks.torch_group import LoneRank
from swift_diloco.tools.bench.lines import Detail, Figure, line, median, short
from swift_diloco.tools.bench.processes import THREADS_VARIABLE, SyncerProcess, end, scratch_folder
from swift_diloco.tools.bench.rank import even_layout

ISLANDS = 2
AIM_S = 0.10
"""Measured for others with the same model on this class of machine (medians): torchft DiLoCo 0.93 s, hivemind 2.6 s,
an HTTP parameter server 2.9 s, gloo's all-reduce alone 0.19 s."""

AIM_ELEMENTS = 50_000_000
"""The model for which the aim holds; other sizes are aimed at in proportion."""

ISLAND_LIMIT_S = 300.0

RANK_THREADS = "1"
"""Threads of torch in each rank, as torchrun sets them."""


@dataclass(frozen=True)
class SyncOptions:
    """The model and how often it is synced."""

    parameters: int = AIM_ELEMENTS
    fragments: int = 8
    syncs: int = 6
    warm_syncs: int = 2
    step_ms: float = 20.0


class Task(msgspec.Struct, frozen=True):
    """What one island's process does."""

    address: str
    island: int
    parameters: int
    fragments: int
    syncs: int
    step_s: float


class Synced(msgspec.Struct, frozen=True):
    """What it prints: per full-model sync the blocked time, and that of the copies that nothing can avoid (s)."""

    blocked_s: list[float]
    processor_s: list[float]
    """The part of it in which the thread had a processor: on a busy machine, what an idle one would have blocked."""
    copies_s: list[float]
    longest_s: float
    """The longest single boundary."""
    took_s: list[float]
    """Time from sync to sync: training and all."""


class FlatModel:
    """`ModelPieces` of a one-rank island: one array per tensor."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # Not zeros: those would be memory that nobody has touched, and the first install would pay for it.
        self.values = [torch.from_numpy(np.ones(spec.elements, np.float32)) for spec in layout.tensors]
        self._pieces: PieceMap

    def specs(self) -> Sequence[TensorSpec]:
        return self._layout.tensors

    def boxes(self, layout: Layout) -> tuple[Box, ...]:
        return tuple(Box(i, (0,) * len(spec.shape), spec.shape) for i, spec in enumerate(layout.tensors))

    def bind(self, pieces: PieceMap) -> None:
        self._pieces = pieces

    def read(self, fragment: int, out: torch.Tensor) -> None:
        for part, tensor in self._parts(fragment, out):
            part.copy_(tensor)

    def write(self, values: Mapping[int, torch.Tensor]) -> None:
        for fragment, stream in values.items():
            for part, tensor in self._parts(fragment, stream):
                tensor.copy_(part)

    def spread(self, fragments: Collection[int]) -> None:
        """There is no other rank."""

    def _parts(self, fragment: int, stream: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        boxes = self._pieces.fragment_boxes(fragment)
        parts = torch.split(stream, [box.elements for box in boxes])
        return list(zip(parts, (self.values[box.tensor] for box in boxes), strict=True))

    def copies_s(self) -> float:
        """Time to copy every fragment out and in, through a buffer that was used before."""
        room = torch.from_numpy(np.ones(max(tensor.numel() for tensor in self.values), np.float32))
        begin = time.perf_counter()
        for tensor in self.values:
            room[: tensor.numel()].copy_(tensor)
            tensor.copy_(room[: tensor.numel()])
        return time.perf_counter() - begin


def run(options: SyncOptions) -> list[Figure]:
    """Measure."""
    syncs = options.warm_syncs + options.syncs
    flags = ("--fragments", str(options.fragments), "--sync-every-steps", str(options.fragments))
    counts = ("--expected-islands", str(ISLANDS), "--min-islands", str(ISLANDS), "--quorum", str(ISLANDS))
    with scratch_folder() as folder, SyncerProcess(folder, *flags, *counts) as syncer:
        tasks = [
            Task(syncer.address, i, options.parameters, options.fragments, syncs, options.step_ms / 1e3)
            for i in range(ISLANDS)
        ]
        results = run_islands(tasks)

    def kept(of: Callable[[Synced], list[float]]) -> list[float]:
        return [seconds for each in results for seconds in of(each)[options.warm_syncs :]]

    blocked = kept(lambda each: each.blocked_s)
    aim = AIM_S * options.parameters / AIM_ELEMENTS
    details: dict[str, Detail] = {
        "parameters": options.parameters,
        "processor_s": short(median(kept(lambda each: each.processor_s))),
        "copies_s": short(median(kept(lambda each: each.copies_s))),
        "each": [short(seconds) for seconds in blocked],
        "longest_boundary_s": short(max(each.longest_s for each in results)),
        "took_s": short(median(kept(lambda each: each.took_s))),
    }
    return [line("sync_blocked", "s", (median(blocked), aim, 1.0), "lower", **details)]


def run_islands(tasks: Sequence[Task]) -> list[Synced]:
    """All of them side by side, each in a process."""
    command = [sys.executable, "-m", __name__]
    environ = {**os.environ, THREADS_VARIABLE: RANK_THREADS}
    words = [msgspec.json.encode(task).decode() for task in tasks]
    running = [subprocess.Popen([*command, word], stdout=subprocess.PIPE, env=environ) for word in words]
    try:
        shown = [process.communicate(timeout=ISLAND_LIMIT_S)[0] for process in running]
    finally:
        for process in running:
            end(process)
    if any(process.returncode for process in running):
        raise DilocoError(f"an island of the bench failed (exit codes {[process.returncode for process in running]})")
    return [msgspec.json.decode(text, type=Synced) for text in shown]


class Trainer:
    """Steps one island through its syncs."""

    def __init__(self, task: Task) -> None:
        self._task = task
        settings = IslandSettings(island_id=task.island)
        facts = JobFacts(step=0, instance=f"bench-{task.island}", address=lambda: task.address)
        self._model = FlatModel(even_layout(task.parameters, task.fragments))
        self._island = Island(settings, self._model, LoneRank(), facts)
        self._step = 0
        self._longest_s = self._processor_s = 0.0

    def run(self) -> Synced:
        """Join, sync so many times, leave."""
        self._island.start()
        blocked, processor, copied, took = [], [], [], []
        for sync in range(1, self._task.syncs + 1):
            begin, before, used = time.perf_counter(), self._island.blocked_s, self._processor_s
            while not self._is_synced(sync):
                self._train()
            blocked.append(self._island.blocked_s - before)
            processor.append(self._processor_s - used)
            took.append(time.perf_counter() - begin)
            copied.append(self._model.copies_s())
        self._island.close(None)
        return Synced(blocked, processor, copied, self._longest_s, took)

    def _is_synced(self, sync: int) -> bool:
        """Whether every fragment was installed so many times: the outer steps go over the fragments in turn."""
        versions = [anchor.name.version if anchor.name is not None else 0 for anchor in self._island.session.anchors]
        return min(versions) > self._task.fragments * (sync - 1)

    def _train(self) -> None:
        time.sleep(self._task.step_s)
        self._step += 1
        before, used = self._island.blocked_s, time.thread_time()
        self._island.step_ended(self._step, trained=True, tokens=1)
        self._processor_s += time.thread_time() - used
        self._longest_s = max(self._longest_s, self._island.blocked_s - before)


def main() -> None:
    """The process of one island."""
    logging.getLogger("swift_diloco").setLevel(logging.WARNING)
    result = Trainer(msgspec.json.decode(sys.argv[1], type=Task)).run()
    print(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    main()
