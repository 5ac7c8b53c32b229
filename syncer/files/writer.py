"""The thread that writes checkpoints, one at a time, while the syncer serves; and the way from the server's buffers to
its files and back.

Buffers are handed over without a copy: published values and complete uploads never change.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.files.checkpoint_files import Intact
from swift_diloco.core.formats.manifest import FileEntry, SavedState, Shape
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import Layout
from syncer.events import CheckpointFailed, CheckpointWritten, Event, FragmentWritten, WriteCheckpoint, WriteFirst
from syncer.files.store import FragmentPart, Store, log
from syncer.links.uploads import Uploads
from syncer.numbers.deltas import flat_values
from syncer.numbers.global_state import GlobalState, Value


@dataclass(eq=False)
class Job:
    """One checkpoint to write. `carried` gives the delta of each push of `state.carried`, in order."""

    number: int
    state: SavedState
    parts: dict[int, FragmentPart]
    carried: Sequence[Callable[[], NDArray[np.float32]]] = ()
    waiting: deque[int] = field(default_factory=deque)
    """Fragments that are not written yet, in the order in which they will be."""

    def __post_init__(self) -> None:
        self.waiting = deque(sorted(self.parts))


class Writer:
    """Writes jobs on a thread of its own. `report` takes events from that thread; `before_manifest` has what must be
    on the disk before a manifest (the tape) written there.

    The thread is a daemon: who ends the process without waiting loses the checkpoint that is being written, and no
    earlier one.
    """

    def __init__(
        self,
        store: Store,
        report: Callable[[Event | Exception], None],
        before_manifest: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._report = report
        self._before_manifest = before_manifest
        self._shape: Shape | None = None
        self._job: Job | None = None
        self._changed = threading.Condition()

    def start(self) -> None:
        """Begin to write; a job that was given before waits for this."""
        threading.Thread(target=self._run, name="checkpoint", daemon=True).start()

    def adopt(self, layout: Layout, plan: FragmentPlan) -> None:
        """What the fragments are made of; once, before the first job."""
        self._shape = Shape(layout, plan)

    def begin(self, job: Job) -> None:
        """Write a checkpoint. There is no other under way."""
        with self._changed:
            assert self._job is None, "one checkpoint at a time"
            self._job = job
            self._changed.notify()

    def hasten(self, fragment: int) -> None:
        """Write this fragment next."""
        with self._changed:
            if self._job is not None and fragment in self._job.waiting:
                self._job.waiting.remove(fragment)
                self._job.waiting.appendleft(fragment)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None)
                job = self._job
            assert job is not None
            try:
                self._write(job)
                ended: Event | Exception = CheckpointWritten(job.number)
            except OSError as error:
                reason = f"{error.strerror or error}: {error.filename or self._store.folder}"
                ended = CheckpointFailed(job.number, reason)
            except Exception as error:
                ended = error  # Our own fault: whoever waits for the end must hear of it.
            with self._changed:
                self._job = None
            del job  # the buffers are free from here on
            self._report(ended)

    def _write(self, job: Job) -> None:
        store = self._store
        assert self._shape is not None
        layout = store.write_shape(self._shape)
        entries: dict[int, FileEntry] = {}
        while (fragment := self._next(job)) is not None:
            entries[fragment] = store.write_fragment(job.state.values[fragment], job.parts.pop(fragment))
            self._report(FragmentWritten(job.number, fragment))
        carried = [store.write_carried(push, job.carried[i]) for i, push in enumerate(job.state.carried)]
        self._before_manifest()
        store.write_manifest(job.state, layout, ([entries[f] for f in sorted(entries)], carried))
        try:
            store.clean()
        except OSError as error:
            log.warning("old files of %s could not be removed: %s", store.folder, error)

    def _next(self, job: Job) -> int | None:
        with self._changed:
            return job.waiting.popleft() if job.waiting else None


class Saver:
    """Performs what the coordinator wants written."""

    def __init__(self, writer: Writer, state: GlobalState, uploads: Uploads) -> None:
        self._writer = writer
        self._state = state
        self._uploads = uploads

    def perform(self, effect: WriteCheckpoint | WriteFirst) -> None:
        """Have it written; how that ends is told by the writer."""
        if isinstance(effect, WriteFirst):
            self._writer.hasten(effect.fragment)
            return
        state, saved = self._state, effect.state
        assert state.layout is not None and state.plan is not None, "no state without a layout"
        self._writer.adopt(state.layout, state.plan)
        parts = {name.fragment: FragmentPart(*state.buffers_of(name)) for name in saved.values}
        deltas = [self._uploads.delta(push.push) for push in saved.carried]
        carried = [partial(flat_values, delta, state.buffers) for delta in deltas]
        self._writer.begin(Job(effect.number, saved, parts, carried))


def events_or_raise(event: Event | Exception) -> list[Event]:
    """What a writer reported, as events. Raises what is no event: a fault of our own."""
    if isinstance(event, Exception):
        raise event
    return [event]


def restore(intact: Intact, state: GlobalState, uploads: Uploads) -> None:
    """Put a checkpoint's tensors where they were."""
    state.adopt_layout(intact.shape.layout, intact.shape.plan)
    values = [Value(name, each) for name, each in zip(intact.state.values, intact.values, strict=True)]
    state.restore(values, intact.momenta)
    for push, delta in zip(intact.state.carried, intact.carried, strict=True):
        uploads.restore(push.push, push.generation, push.fragment, delta)
