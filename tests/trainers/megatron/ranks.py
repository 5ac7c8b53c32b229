"""Ranks of an island for tests: forked processes that meet over gloo through a file, without ports or launchers."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch.distributed as dist

JOIN_TIMEOUT_S = 50.0


def run_ranks(size: int, folder: Path, body: Callable[[int], object]) -> list[object]:
    """What `body(rank)` returned on each of `size` ranks; the first rank's error, if any failed."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    children = [
        context.Process(target=_rank, args=(rank, size, folder / "store", body, pipes[rank][1]), daemon=True)
        for rank in range(size)
    ]
    for child in children:
        child.start()
    results: list[object] = []
    try:
        for rank, (receiver, _) in enumerate(pipes):
            assert receiver.poll(JOIN_TIMEOUT_S), f"rank {rank} did not answer within {JOIN_TIMEOUT_S} s"
            failure, result = receiver.recv()
            assert failure is None, f"rank {rank} failed:\n{failure}"
            results.append(result)
    finally:
        for child in children:
            child.join(1.0)
            if child.is_alive():
                child.kill()
                child.join()
    return results


def _rank(rank: int, size: int, store: Path, body: Callable[[int], object], answer: Connection) -> None:
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        result = body(rank)
        dist.barrier()
        answer.send((None, result))
    except BaseException:
        answer.send((traceback.format_exc(), None))
