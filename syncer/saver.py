"""Between the server's buffers and the files of a checkpoint, both ways.

Runs on the server's thread and hands buffers over without a copy: published values and complete uploads never change.
"""

from __future__ import annotations

from functools import partial

from swift_diloco.core.files.checkpoint_files import Intact
from syncer.checkpoint import Job, Part, Writer
from syncer.deltas import flat_values
from syncer.events import Event, WriteCheckpoint, WriteFirst
from syncer.global_state import GlobalState, Value
from syncer.uploads import Uploads


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
        parts = {name.fragment: Part(*state.buffers_of(name)) for name in saved.values}
        deltas = [self._uploads.delta(push.push) for push in saved.carried]
        carried = [partial(flat_values, delta, state.buffers) for delta in deltas]
        self._writer.begin(Job(effect.number, saved, parts, carried))


def told(event: Event | Exception) -> list[Event]:
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
