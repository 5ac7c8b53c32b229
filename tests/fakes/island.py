"""A whole fake island: N rank threads, each the real Island around a quadratic, against a real syncer.

Also a program: `python -m tests.fakes.island '{"address": …, "island": 0, …}'` prints one JSON line with what came out.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from swift_diloco.core.errors import DilocoError, exit_with
from swift_diloco.core.layout.tensors import TensorSpec
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.island.island import Island, JobFacts
from swift_diloco.trainers.embedded.life import OwnSyncer
from swift_diloco.trainers.embedded.process import EmbeddedSyncer
from tests.fakes import checkpoint
from tests.fakes.group import ThreadGroup
from tests.fakes.quadratic import SPECS, QuadraticModel, scaled, whole_tensors


class Job(msgspec.Struct, frozen=True):
    """What a fake island does."""

    address: str
    island: int = 0
    ranks: int = 1
    steps: int = 12
    start: float = 0.0
    target: float = 1.0
    lr: float = 0.5
    tokens: int = 10
    step_s: float = 0.0
    elements: int = 0
    """0: the small model; else about so many elements."""
    instance: str = "fake"
    heartbeat_s: float = 1.0
    connect_timeout_s: float = 20.0
    initial_cut_timeout_s: float = 40.0
    finish_timeout_s: float = 60.0
    curve_key: str = ""
    syncer_key: str = ""
    die_at_step: int = -1
    """SIGKILL the process when this step is reached."""
    out: str = ""
    """Folder of its checkpoints, from whose newest it starts; empty: none are written or read."""
    save_every: int = 0
    """Steps between checkpoints; 0: only what is ordered, and the last one."""
    save_anchors: bool = False
    run_dir: str = ""
    """The island starts a syncer of its own in this folder, and `address` is not used."""
    syncer_args: str = ""
    folder: str = ""
    """Its run folder, where a session that raises leaves its story."""
    save_s: float = 0.0
    """How long writing a checkpoint takes."""
    said: str = ""
    """File for what a process with this job says; empty: stdout."""

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return scaled(self.elements) if self.elements else SPECS


@dataclass
class FakeIsland:
    """Runs a `Job`; `tensors` and `digest` afterwards are the model it ended with."""

    job: Job
    on_step: Callable[[int], None] = lambda step: None
    on_event: Callable[[str, int], None] = lambda event, step: None
    """Called on rank 0 as things begin: `init` (values read or written before training), `started`, `push`, `install`,
    `save`, `record` (the checkpoint is complete, its sync record is not), `saved`, `finish`, `final` (the final cut is
    in the model); with the step."""
    errors: list[BaseException] = field(default_factory=list)
    models: list[QuadraticModel] = field(default_factory=list)
    islands: list[Island] = field(default_factory=list)
    steps_done: int = 0
    began_at: int = 0
    """The step of the checkpoint it started from."""
    saves: list[int] = field(default_factory=list)
    """Steps at which the syncer had this island save."""
    _training: bool = False

    def run(self) -> None:
        """Train to the end; raises what the ranks raised."""
        job = self.job
        groups = ThreadGroup.make(job.ranks)
        settings = IslandSettings(
            island_id=job.island,
            heartbeat_s=job.heartbeat_s,
            connect_timeout_s=job.connect_timeout_s,
            initial_cut_timeout_s=job.initial_cut_timeout_s,
            finish_timeout_s=job.finish_timeout_s,
            curve_key=job.curve_key,
            syncer_key=job.syncer_key,
            save_anchors=job.save_anchors,
            syncer_args=job.syncer_args,
        )
        self.steps_done = self.began_at = checkpoint.newest(Path(job.out)) if job.out else 0
        resumed_from = checkpoint.folder_of(Path(job.out), self.began_at) if self.began_at else None
        self.syncer = EmbeddedSyncer(Path(job.run_dir), settings) if job.run_dir else None
        own = OwnSyncer(self.syncer) if self.syncer is not None else None
        facts = JobFacts(
            self.began_at,
            f"{job.instance}-{job.island}",
            own.address if own is not None else lambda: job.address,
            own.revive if own is not None else None,
            resumed_from,
            Path(job.folder),
        )
        for rank, group in enumerate(groups):
            model = QuadraticModel(rank, job.ranks, start=job.start, target=job.target, specs=job.specs)
            if resumed_from is not None:
                model.resume = partial(checkpoint.read_values, resumed_from)
            if rank == 0:
                model.watch = self._touched
            self.models.append(model)
            self.islands.append(Island(settings, model, group, facts))
        threads = [threading.Thread(target=self._rank, args=(rank,), daemon=True) for rank in range(job.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _rank(self, rank: int) -> None:
        island, model, job = self.islands[rank], self.models[rank], self.job
        failure: BaseException | None = None
        try:
            island.start()
            self._begins(rank, "started", self.began_at)
            step, final = self.began_at, True
            while step < job.steps:
                time.sleep(job.step_s)
                model.train(job.lr)
                step += 1
                if rank == 0:
                    self.steps_done = step
                    self.on_step(step)
                verdict = island.step_ended(step, trained=True, tokens=job.tokens)
                if verdict.save and rank == 0:
                    self.saves.append(step)
                if verdict.save or self._save_is_due(step):
                    self._save(rank, step)
                if verdict.stop:
                    final = verdict.final
                    break
                if verdict.save and island.step_begins().stop:
                    break
            if final:
                self._begins(rank, "finish", step)
                island.finish(step)
                self._begins(rank, "final", step)
            self._save(rank, step)
            island.saved()
        except BaseException as error:
            failure = error
            self.errors.append(error)
        finally:
            island.close(failure)

    def _touched(self, what: str) -> None:
        """Rank 0's model is read (for INIT or a push) or written (by an install)."""
        event = {"read": "push", "write": "install"}[what] if self._training else "init"
        self.on_event(event, self.steps_done)

    def _begins(self, rank: int, event: str, step: int) -> None:
        if rank == 0:
            self._training = self._training or event == "started"
            self.on_event(event, step)

    def _save_is_due(self, step: int) -> bool:
        """The last step is saved after the final cut, not before."""
        return self.job.save_every > 0 and step % self.job.save_every == 0 and step < self.job.steps

    def _save(self, rank: int, step: int) -> None:
        """What a trainer does at a save; collective."""
        if not self.job.out:
            return
        out, island = Path(self.job.out), self.islands[rank]
        self._begins(rank, "save", step)
        time.sleep(self.job.save_s)
        checkpoint.write_values(checkpoint.folder_of(out, step), self.models[rank])
        island.group.all_true([])
        if rank == 0:
            checkpoint.name_newest(out, step)
        self._begins(rank, "record", step)
        island.save(checkpoint.folder_of(out, step), step)
        self._begins(rank, "saved", step)

    @property
    def tensors(self) -> dict[str, NDArray[np.float32]]:
        return whole_tensors(self.islands[0].layout, self.models)

    @property
    def digest(self) -> str:
        """Over all global tensors."""
        hasher = xxhash.xxh3_128()
        for name, tensor in sorted(self.tensors.items()):
            hasher.update(name.encode())
            hasher.update(np.ascontiguousarray(tensor).data)
        return hasher.hexdigest()


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s", force=True)
    job = msgspec.json.decode(sys.argv[1], type=Job)
    try:
        with open(job.said, "a", encoding="utf-8") if job.said else nullcontext(sys.stdout) as out:
            run_as_process(job, out)
    except DilocoError as error:
        exit_with(error)
    return 0


def run_as_process(job: Job, out: TextIO) -> None:
    """Run a job in this process, which says what happens and what came out, one JSON object a line."""

    def say(**row: object) -> None:
        print(json.dumps(row), file=out, flush=True)

    def on_event(event: str, step: int) -> None:
        say(event=event, step=step, time=time.time())

    def on_step(step: int) -> None:
        say(step=step, time=time.time(), blocked_s=island.islands[0].blocked_s)
        if step == job.die_at_step:
            os.kill(os.getpid(), signal.SIGKILL)

    island = FakeIsland(job, on_step, on_event)
    island.run()
    sample = {name: float(tensor.flat[0]) for name, tensor in island.tensors.items()}
    traffic = [i.performer.traffic for i in island.islands]
    say(
        island=job.island,
        steps=island.steps_done,
        digest=island.digest,
        sample=sample,
        pushed_bytes=sum(t.pushed_bytes for t in traffic),
        fetched_bytes=sum(t.fetched_bytes for t in traffic),
        blocked_s=max(i.blocked_s for i in island.islands),
    )


if __name__ == "__main__":
    raise SystemExit(main())
