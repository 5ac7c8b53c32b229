"""Capture and install arithmetic on one rank's streams, checked against values computed by hand."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import make_layout
from swift_diloco.island.events import Align
from swift_diloco.island.numbers import anchor_store as values
from swift_diloco.island.numbers.anchor_store import AnchorStore, Arrival
from swift_diloco.island.numbers.host_buffers import HostBuffers, Values
from tests.fakes.quadratic import SPECS, QuadraticModel


class Rank:
    """One rank of a two-rank island with its anchors at 1.0 everywhere."""

    def __init__(self) -> None:
        layout = make_layout(SPECS)
        self.model = QuadraticModel(0, 2, start=1.0, target=3.0)
        self.pieces = PieceMap(layout, plan_fragments(layout, 2, "binpack"), self.model.boxes(layout))
        self.model.bind(self.pieces)
        self.store = AnchorStore(self.model, self.pieces, HostBuffers())
        for fragment in (0, 1):
            self.store.anchor_or_present(fragment)

    def stream(self, value: float) -> Values:
        return np.full(self.pieces.elements(0), value, dtype=np.float32)

    def local(self) -> Values:
        out = torch.empty(self.pieces.elements(0))
        self.model.read(0, out)
        return out.numpy()

    def captured(self, *, keep: bool = False) -> Values:
        deltas: list[Values] = []
        self.store.capture(0, deltas.append, keep=keep)
        self.store.await_deltas()
        return deltas[0]

    def install(self, value: Values, align: Align, alpha: float = 0.0) -> None:
        self.store.install([Arrival(0, value, align, alpha)])


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_capture_is_local_minus_anchor(rank: Rank) -> None:
    rank.model.train(lr=0.5)  # 1.0 -> 2.0
    assert np.array_equal(rank.captured(), rank.stream(1.0))


def test_a_capture_is_of_the_values_at_its_boundary_and_of_the_anchor_then(rank: Rank) -> None:
    rank.model.train(lr=0.5)  # 2.0: progress 1.0
    deltas: list[Values] = []
    may_go_on = threading.Event()

    def ready(delta: Values) -> None:
        assert may_go_on.wait(5)
        deltas.append(delta.copy())

    rank.store.capture(0, ready)
    rank.store.capture(0, ready)  # its subtraction waits for the first delta to be taken
    rank.model.train(lr=0.5)
    may_go_on.set()
    rank.install(rank.stream(7.0), Align.OVERWRITE)
    assert [np.array_equal(delta, rank.stream(1.0)) for delta in deltas] == [True, True]


def test_what_goes_wrong_with_a_delta_is_raised_when_it_is_settled(rank: Rank) -> None:
    def fail(delta: Values) -> None:
        raise RuntimeError("no link")

    rank.store.capture(0, fail)
    with pytest.raises(RuntimeError, match="no link"):
        rank.store.await_deltas()
    rank.store.await_deltas()


def test_overwrite_replaces_local_values_and_anchor(rank: Rank) -> None:
    rank.model.train(lr=0.5)
    rank.install(rank.stream(7.0), Align.OVERWRITE)
    assert np.array_equal(rank.local(), rank.stream(7.0))
    assert np.array_equal(rank.captured(), rank.stream(0.0))


def test_blend_mixes_into_the_model_but_the_anchor_is_the_raw_value(rank: Rank) -> None:
    rank.model.train(lr=0.5)  # 2.0
    rank.install(rank.stream(6.0), Align.BLEND, alpha=0.25)
    assert np.array_equal(rank.local(), rank.stream(0.25 * 2.0 + 0.75 * 6.0))
    assert np.array_equal(rank.store.anchor(0), rank.stream(6.0))


def test_shift_carries_local_progress_onto_the_new_value(rank: Rank) -> None:
    rank.model.train(lr=0.5)  # 2.0: progress 1.0
    rank.install(rank.stream(10.0), Align.SHIFT)
    assert np.array_equal(rank.local(), rank.stream(11.0))
    assert np.array_equal(rank.captured(), rank.stream(1.0))


def test_shift_keeps_the_bits_of_elements_whose_global_value_did_not_change(rank: Rank) -> None:
    local = rank.local()
    local[:] = np.float32(1e-9)  # 1 + (1e-9 - 1) would round it away
    rank.model.write({0: torch.from_numpy(local), 1: torch.empty(rank.pieces.elements(1)).fill_(1.0)})
    new = rank.stream(1.0)
    new[0] = 5.0
    rank.install(new, Align.SHIFT)
    assert rank.local()[1:].tobytes() == local[1:].tobytes()
    assert rank.local()[0] == np.float32(5.0) + (np.float32(1e-9) - np.float32(1.0))


def test_carry_keeps_only_the_progress_since_the_capture(rank: Rank) -> None:
    rank.model.train(lr=0.5)  # 2.0: progress 1.0 is pushed
    rank.captured(keep=True)
    rank.model.train(lr=0.5)  # 2.5: progress 0.5 since
    rank.install(rank.stream(10.0), Align.CARRY)
    assert np.array_equal(rank.local(), rank.stream(10.5))
    assert np.array_equal(rank.captured(), rank.stream(0.5))


@pytest.mark.parametrize("align", [Align.BLEND, Align.SHIFT, Align.CARRY])
def test_an_install_in_blocks_has_the_bits_of_an_install_at_once(align: Align, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for block in (10**6, 7):
        monkeypatch.setattr(values, "BLOCK_ELEMENTS", block)
        other, random = Rank(), np.random.default_rng(1)
        local, new = (random.standard_normal(other.pieces.elements(0)).astype(np.float32) for _ in range(2))
        rest = torch.zeros(other.pieces.elements(1))
        other.model.write({0: torch.from_numpy(local), 1: rest})
        other.captured(keep=True)
        other.model.write({0: torch.from_numpy(local * 3), 1: rest})
        other.install(new, align, 0.3)
        results.append(other.local().tobytes())
    assert results[0] == results[1]


def test_all_values_of_one_boundary_are_written_in_one_go(rank: Rank) -> None:
    other = np.full(rank.pieces.elements(1), 4.0, dtype=np.float32)
    rank.store.install(
        [
            Arrival(0, rank.stream(2.0), Align.OVERWRITE, 0.0),
            Arrival(1, other, Align.OVERWRITE, 0.0),
        ]
    )
    assert rank.model.writes == 1


class CountingBuffers(HostBuffers):
    """Knows the most buffers that were out at once."""

    def __init__(self) -> None:
        super().__init__()
        self.out = 0
        self.most = 0

    def take(self, elements: int) -> Values:
        self.out += 1
        self.most = max(self.most, self.out)
        return super().take(elements)

    def give(self, values: Values) -> None:
        self.out -= 1
        super().give(values)


@pytest.mark.parametrize("align", [Align.BLEND, Align.SHIFT])
def test_fragments_that_arrive_together_need_one_copy_of_local_values_at_a_time(align: Align) -> None:
    layout, buffers = make_layout(SPECS), CountingBuffers()
    model = QuadraticModel(0, 1, start=1.0, target=3.0)
    pieces = PieceMap(layout, plan_fragments(layout, 5, "binpack"), model.boxes(layout))
    model.bind(pieces)
    store = AnchorStore(model, pieces, buffers)
    for fragment in range(5):
        store.anchor_or_present(fragment)
    assert buffers.out == buffers.most == 5
    arrivals = []
    for fragment in range(5):
        arrived = buffers.take(pieces.elements(fragment))
        arrived[:] = 2.0 + fragment
        arrivals.append(Arrival(fragment, arrived, align, 0.5))
    store.install(arrivals)
    assert buffers.most == 5 + 5 + 1
    assert buffers.out == 5
    out = [torch.empty(pieces.elements(fragment)) for fragment in range(5)]
    for fragment in range(5):
        model.read(fragment, out[fragment])
        expected = 2.0 + fragment if align is Align.SHIFT else 0.5 + (2.0 + fragment) / 2
        assert (out[fragment] == expected).all()
