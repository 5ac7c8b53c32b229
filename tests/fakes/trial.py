"""A fake island for trials: it can vanish like a killed process, come back from a checkpoint under any number of ranks,
and shows its values and anchors as they were when it had started.

Runs on threads of the test's process, so a test can look at everything and hold it at any step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.tensors import TensorSpec
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.island.island import Island, JobFacts
from tests.fakes import checkpoint
from tests.fakes.group import ThreadGroup
from tests.fakes.quadratic import SPECS, QuadraticModel, scaled, whole_of
from tests.fakes.waiting import WAIT_S

HOLD_S = 250.0
"""An island that is held longer fails: its test has forgotten it."""

DEFAULTS: Mapping[str, Any] = {
    "heartbeat_s": 0.5, "connect_timeout_s": 20.0, "initial_cut_timeout_s": 40.0, "finish_timeout_s": 40.0,
}  # fmt: skip

Tensors = list[NDArray[np.float32]]
Parts = dict[Box, NDArray[np.float32]]


class Vanished(BaseException):
    """The island ends as a killed process does: without a word."""


@dataclass(frozen=True)
class Snapshot:
    """Copies of the whole model and of the whole anchors."""

    model: Tensors
    anchors: Tensors


@dataclass
class Trial:
    """One life of an island. `settings` are fields of `IslandSettings`."""

    address: str
    steps: int
    island_id: int = 0
    ranks: int = 1
    start: float = 0.0
    target: float = 1.0
    lr: float = 0.3
    """May be changed while it runs; 0: steps whose updates are skipped."""
    step_s: float = 0.01
    elements: int = 0
    """0: the small model."""
    model_specs: tuple[TensorSpec, ...] = ()
    """The tensors of another model."""
    out: Path | None = None
    """Where checkpoints go."""
    save_every: int = 0
    """Steps between checkpoints; 0: only at the end, when ordered, and before it vanishes."""
    resume_from: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    before_step: Callable[[int], None] = lambda step: None
    """Called on rank 0 before the step of this number is trained."""
    vanish_when: Callable[[Island, int], bool] = lambda island, step: False
    """Asked on every rank after each boundary; the answer must be the same on all, as their sessions are. The island
    saves, if it has a folder, and vanishes."""
    vanish_before: str = ""
    """Vanish between the final cut and the last save (`save`), or between that save and telling of it (`saved`)."""
    looks: bool = True
    """Whether `at_start` is wanted; it costs the memory of the model and the anchors."""
    model_type: type[QuadraticModel] = QuadraticModel
    islands: list[Island] = field(default_factory=list)
    models: list[QuadraticModel] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    steps_done: int = 0
    vanished: bool = False
    ends_at: int = 0
    """For tests that decide while it runs."""
    saved_at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._started: list[tuple[Parts, Parts]] = []
        self._threads: list[threading.Thread] = []

    # -- running -------------------------------------------------------------------------------------------------------

    def begin(self) -> Trial:
        """Start all ranks; returns at once."""
        step = int(self.resume_from.name.partition("-")[2]) if self.resume_from is not None else 0
        self.steps_done = step
        settings = IslandSettings(island_id=self.island_id, **{**DEFAULTS, **self.settings})
        facts = JobFacts(step, f"trial-{self.island_id}", lambda: self.address, resumed_from=self.resume_from)
        for rank, group in enumerate(ThreadGroup.make(self.ranks)):
            model = self.model_type(rank, self.ranks, start=self.start, target=self.target, specs=self.specs)
            if self.resume_from is not None:
                model.resume = partial(checkpoint.read_values, self.resume_from)
            self.models.append(model)
            self.islands.append(Island(settings, model, group, facts))
        self._threads = [threading.Thread(target=self._rank, args=(r,), daemon=True) for r in range(self.ranks)]
        for thread in self._threads:
            thread.start()
        return self

    def join(self) -> Trial:
        """Wait for its good end."""
        deadline = time.monotonic() + WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.errors:
            raise self.errors[0]
        assert not self.runs, str(self)
        return self

    def _rank(self, rank: int) -> None:
        island, failure = self.islands[rank], None
        try:
            self._train(rank, island, self.models[rank])
        except Vanished:
            self.vanished = True
        except BaseException as error:
            failure = error
            self.errors.append(error)
        finally:
            island.close(failure)

    def _train(self, rank: int, island: Island, model: QuadraticModel) -> None:
        island.start()
        if self.looks:
            self._started.append(_values(island, model))
        step, final = island.job.step, True
        while step < self.steps:
            time.sleep(self.step_s)
            if rank == 0:
                self.before_step(step + 1)
            if island.step_begins().stop:
                break
            model.train(self.lr)
            step += 1
            verdict = island.step_ended(step, trained=self.lr > 0, tokens=10)
            if rank == 0:
                self.steps_done = step
            vanishes = self.vanish_when(island, step)
            if verdict.save or vanishes or (self.save_every and step % self.save_every == 0 and step < self.steps):
                self._save(rank, step)
            if vanishes:
                raise Vanished
            if verdict.stop:
                final = verdict.final
                break
        if final:
            island.finish(step)
        self._vanish_before("save", island)
        self._save(rank, step)
        self._vanish_before("saved", island)
        island.saved()

    def _vanish_before(self, what: str, island: Island) -> None:
        if self.vanish_before == what:
            island.group.all_true([True])  # all ranks have come here
            raise Vanished

    def _save(self, rank: int, step: int) -> None:
        """As a trainer does: the model, then the record beside it."""
        if self.out is None:
            return
        folder = checkpoint.folder_of(self.out, step)
        checkpoint.write_values(folder, self.models[rank])
        self.islands[rank].save(folder, step)
        if rank == 0:
            self.saved_at.append(step)

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return self.model_specs or (scaled(self.elements) if self.elements else SPECS)

    def __str__(self) -> str:
        return f"island {self.island_id} waits for {self.waits_for!r} at step {self.steps_done}"

    @property
    def runs(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    @property
    def session(self) -> Any:
        """Rank 0's session; None before it has one."""
        return getattr(self.islands[0], "session", None) if self.islands else None

    @property
    def waits_for(self) -> str:
        return self.session.waiting_for() if self.session is not None else "its own start"

    @property
    def has_started(self) -> bool:
        return len(self._started) == self.ranks

    @property
    def at_start(self) -> Snapshot:
        """When `start` was over."""
        return self._whole(self._started)

    @property
    def now(self) -> Snapshot:
        """Only while the island does not run."""
        return self._whole([_values(island, model) for island, model in zip(self.islands, self.models, strict=True)])

    def _whole(self, parts: Sequence[tuple[Parts, Parts]]) -> Snapshot:
        model: Parts = {}
        anchors: Parts = {}
        for own_model, own_anchors in parts:
            model |= own_model
            anchors |= own_anchors
        layout = self.islands[0].layout
        return Snapshot(whole_of(model, layout), whole_of(anchors, layout))

    @property
    def digest(self) -> str:
        """Of the whole model."""
        hasher = xxhash.xxh3_128()
        for tensor in self.now.model:
            hasher.update(np.ascontiguousarray(tensor).data)
        return hasher.hexdigest()

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """Payload pushed and fetched by all ranks."""
        traffic = [island.performer.traffic for island in self.islands]
        return sum(one.pushed_bytes for one in traffic), sum(one.fetched_bytes for one in traffic)


def _values(island: Island, model: QuadraticModel) -> tuple[Parts, Parts]:
    store, pieces = island.performer.values, island.performer.pieces
    assert store is not None and pieces is not None
    anchors: Parts = {}
    for fragment, stream in store.anchors.items():
        position = 0
        for box in pieces.fragment_boxes(fragment):
            anchors[box] = stream[position : position + box.elements].copy()
            position += box.elements
    return {box: part.numpy().copy() for box, part in model.parts.items()}, anchors


class Hold:
    """Holds an island before the first step at which `when` is true, and again whenever it is asked to."""

    def __init__(self, when: Callable[[int], bool] = lambda step: False) -> None:
        self.when = when
        self._asked = False
        self._go = threading.Event()
        self.held = threading.Event()

    def __call__(self, step: int) -> None:
        if self._asked or self.when(step):
            self.held.set()
            assert self._go.wait(HOLD_S), "the hold was never released"

    @classmethod
    def before(cls, step: int) -> Hold:
        return cls(lambda number: number >= step)

    def again(self) -> None:
        """Hold before the next step, and wait until it stands there."""
        self.held.clear()
        self._go.clear()
        self._asked = True
        assert self.held.wait(WAIT_S), "the island never came to its next step"

    def release(self) -> None:
        self._asked, self.when = False, lambda step: False
        self._go.set()
