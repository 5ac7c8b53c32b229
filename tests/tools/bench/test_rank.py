"""A rank whose values nobody keeps: what it pushes, what it installs and what it notes."""

from __future__ import annotations

import numpy as np
import pytest

from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.island.events import Align
from swift_diloco.island.numbers.anchor_store import Arrival
from swift_diloco.island.numbers.host_buffers import HostBuffers, Values
from swift_diloco.tools.bench.rank import ForgetfulStore, NoModel, Notes, even_layout


@pytest.mark.parametrize(("elements", "fragments", "rows"), [(4096, 2, 2), (10_000, 3, 3), (5, 2, 1)])
def test_fragments_are_equal_tensors(elements: int, fragments: int, rows: int) -> None:
    layout = even_layout(elements, fragments)
    assert [spec.shape for spec in layout.tensors] == [(rows, 1024)] * fragments


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def store(notes: Notes) -> ForgetfulStore:
    layout = even_layout(4096, 2)
    model = NoModel(layout)
    pieces = PieceMap(layout, plan_fragments(layout, 2, "binpack"), model.boxes(layout))
    assert [pieces.elements(fragment) for fragment in (0, 1)] == [2048, 2048]
    return ForgetfulStore(model, pieces, HostBuffers(), notes)


def test_every_capture_is_the_same_memory_and_is_noted(store: ForgetfulStore, notes: Notes) -> None:
    given: list[Values] = []
    for fragment in (0, 1):
        store.capture(fragment, given.append)
    first, second = given
    assert np.shares_memory(first, second) and first.shape == (2048,) and (first == np.float32(1e-6)).all()
    assert len(notes.captured) == 2 and notes.captured[0] <= notes.captured[1]


def test_every_install_is_noted_at_one_time_and_its_buffer_is_free_again(store: ForgetfulStore, notes: Notes) -> None:
    buffer = store._own_buffers.take(2048)
    arrivals = [Arrival(0, buffer, Align.OVERWRITE, 0.0), Arrival(1, store.anchor_or_present(1), Align.OVERWRITE, 0.0)]
    store.install(arrivals)
    assert len(notes.installed) == 2 and notes.installed[0] == notes.installed[1]
    assert np.shares_memory(store._own_buffers.take(2048), buffer)
