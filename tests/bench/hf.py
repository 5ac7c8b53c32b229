"""What the plugin costs a `swift sft` job: `python -m tests.bench.hf`, a line of JSON per figure.

A step without a sync is timed inside a real job: everything our callback and our wrappers do in a step, against the
whole step. A snapshot and an install are timed on a larger model against copying the same FP32 values once, in the same
process; on a busy machine look at the ratio, which is the best of several rounds on both sides. (The anchor is
subtracted from a snapshot beside the training.)
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import make_layout
from swift_diloco.island.ranks.torch_group import LoneRank
from swift_diloco.tools.bench.lines import Figure, line, say
from swift_diloco.trainers.hf.pieces import HfPieces

STEPS = 200
WARM_STEPS = 20
STEP_BUDGET_MS = 2.0
SNAPSHOT_FACTOR = 1.5
INSTALL_FACTOR = 2.5
ROUNDS = 9
LAYERS, WIDTH = 8, 2048


def best(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Seconds of the fastest of several rounds."""
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def transfers(dtype: torch.dtype) -> list[Figure]:
    """A snapshot and an install of a whole model against one copy of its FP32 values."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).to(dtype)
    pieces = HfPieces(model, LoneRank())
    layout = make_layout(pieces.specs())
    where = PieceMap(layout, plan_fragments(layout, 1, "binpack"), pieces.boxes(layout))
    pieces.bind(where)
    elements = where.elements(0)
    new, out = torch.randn(elements), torch.empty(elements)
    pieces.write({0: new})
    copy = best(lambda: out.copy_(new))
    snapshot = best(lambda: pieces.read(0, out))
    install = best(lambda: pieces.write({0: new}))
    name = str(dtype).removeprefix("torch.")
    return [
        line(f"snapshot {name}", "s", (snapshot, copy, SNAPSHOT_FACTOR), "lower", elements=elements),
        line(f"install {name}", "s", (install, copy, INSTALL_FACTOR), "lower", elements=elements),
    ]


def timed_job() -> None:
    """In the fork server: a real job whose hooks write down how long each step spent in them."""
    from swift.callbacks import callbacks_map
    from swift.pipelines import sft_main

    from swift_diloco.trainers.hf.callback import DilocoCallback

    target, *argv = sys.argv[1:]
    spent: list[float] = []

    class Timed(DilocoCallback):
        def on_step_begin(self, *args: object, **kwargs: object) -> None:
            begin = time.perf_counter()
            super().on_step_begin(*args, **kwargs)
            spent.append(time.perf_counter() - begin)

        def on_pre_optimizer_step(self, *args: object, **kwargs: object) -> None:
            begin = time.perf_counter()
            super().on_pre_optimizer_step(*args, **kwargs)
            spent[-1] += time.perf_counter() - begin

        def on_step_end(self, *args: object, **kwargs: object) -> None:
            begin = time.perf_counter()
            super().on_step_end(*args, **kwargs)
            spent[-1] += time.perf_counter() - begin

    callbacks_map["timed"] = Timed
    sys.argv = ["sft.py", *argv, "--callbacks", "timed"]
    sft_main()
    Path(target).write_text("\n".join(map(str, spent)))


def step_cost() -> Figure:
    """Milliseconds that our hooks take in a step in which nothing is synced."""
    from tests.e2e.harness import SyncerProcess
    from tests.forkserver.forkserver import ForkServer
    from tests.forkserver.tiny import TinyProject
    from tests.trainers.hf.jobs import LONE, Job

    with tempfile.TemporaryDirectory() as name, ForkServer(Path(name) / "server", family="swift") as server:
        folder = Path(name)
        server.call("tests.forkserver.tiny:build_from_command_line", [str(folder)]).check()
        flags = {"max_steps": STEPS, "save_steps": STEPS, "logging_steps": 50}
        with SyncerProcess(folder / "run", "--sync-every-steps", str(10 * STEPS)) as syncer:
            words = Job(TinyProject(folder), folder / "out", flags, plugin=False).words()
            environment = {**LONE, "YETO_DILOCO_SYNCER": syncer.address}
            target = folder / "spent"
            job = server.start([str(target), *words], entry="tests.bench.hf:timed_job", env=environment)
            job.wait(300).check()
            spent = [float(text) for text in target.read_text().splitlines()][WARM_STEPS:-1]
    milliseconds = statistics.median(spent) * 1000
    return line("step without sync", "ms", (milliseconds, STEP_BUDGET_MS, 1.0), "lower", steps=len(spent))


def main() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for figure in transfers(dtype):
            say(figure)
    say(step_cost())


if __name__ == "__main__":
    main()
