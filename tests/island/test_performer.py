"""Every effect does to the links, the anchors and the model of one rank what it says, from its own facts alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch

from swift_diloco.core.formats.messages import Contract, Done, Hello, IslandMessage, ValueName
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout, TensorSpec, make_layout
from swift_diloco.island import events
from swift_diloco.island.events import Align, Install
from swift_diloco.island.files.record import NOTHING_RESUMED
from swift_diloco.island.links.bulk_link import BulkLink
from swift_diloco.island.links.control_link import ControlLink
from swift_diloco.island.links.fetches import Pass
from swift_diloco.island.numbers.host_buffers import HostBuffers, Values
from swift_diloco.island.performer import Introduction, Links, Performer

LAYOUT = make_layout([TensorSpec("a", (2,), "avg"), TensorSpec("b", (3,), "avg")])
PLAN = FragmentPlan(((0,), (1,)))
BOXES = (Box(0, (0,), (2,)), Box(1, (0,), (3,)))
V0, V1 = ValueName(0, 1, "a1"), ValueName(1, 1, "b1")
CONTRACT = Contract(sync_every_steps=3)
INTRODUCE = events.Introduce("s", "g", "t", CONTRACT, (V0,), frozenset({1}))


class Model:
    """Two fragments of ones; notes what is written, and beside which other calls."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls
        self.values = {0: torch.ones(2), 1: torch.ones(3)}

    def specs(self) -> Sequence[TensorSpec]:
        return LAYOUT.tensors

    def boxes(self, layout: Layout) -> Sequence[Box]:
        return BOXES

    def bind(self, pieces: PieceMap) -> None:
        self.calls.append(("model.bind", pieces.plan))

    def read(self, fragment: int, out: torch.Tensor) -> None:
        out.copy_(self.values[fragment])

    def write(self, values: Mapping[int, torch.Tensor]) -> None:
        self.calls.append(("write", {fragment: new.tolist() for fragment, new in values.items()}))
        for fragment, new in values.items():
            self.values[fragment] = new.clone()

    def spread(self, fragments: Collection[int]) -> None:
        self.calls.append(("spread", sorted(fragments)))


class Control:
    """A control link that carries nothing."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def send(self, message: IslandMessage) -> None:
        self.calls.append(message)

    def joined(self, session: str, generation: str) -> None:
        self.calls.append(("joined", session, generation))


class Bulk:
    """A bulk link on which every value has arrived: those of fragment f are all 10 + f."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls
        self.offered: dict[str, Values] = {}

    def bind(self, pieces: PieceMap) -> None:
        self.calls.append(("bind", pieces.plan))

    def introduce(
        self, granted: Pass, contract: Contract, held: Sequence[ValueName], spent: Collection[int] = ()
    ) -> None:
        self.calls.append(("introduce", granted, contract, held, spent))

    def name_held(self, name: ValueName) -> None:
        self.calls.append(("name held", name))

    def take(self, name: ValueName) -> Values:
        self.calls.append(("take", name))
        return np.full(2 + name.fragment, 10.0 + name.fragment, np.float32)

    def fetch_exactly(self, names: Sequence[ValueName]) -> None:
        self.calls.append(("fetch exactly", names))

    def provides_init(self) -> None:
        self.calls.append("provides init")

    def offer(self, upload: str, values: Values, fragment: int | None = None) -> None:
        self.offered[upload] = values
        self.calls.append(("offer", upload, values.tolist(), fragment))

    def forget(self, upload: str, *, counted: bool = False) -> Values | None:
        self.calls.append(("forget", upload, counted))
        return self.offered.pop(upload, None)


class Rank:
    """A performer and all that was done through it."""

    def __init__(self, *, links: bool = True) -> None:
        self.calls: list[Any] = []
        self.model = Model(self.calls)
        control = cast(ControlLink, Control(self.calls)) if links else None
        bulk = cast(BulkLink, Bulk(self.calls)) if links else None
        about = Introduction(1, "instance", LAYOUT, BOXES, owners=4)
        self.performer = Performer(self.model, Links(control, bulk, HostBuffers()), about, NOTHING_RESUMED)

    def perform(self, *effects: events.Effect) -> list[Any]:
        self.calls.clear()
        deeds, words, _ = events.sorted_out(effects)
        self.performer.perform(deeds)
        self.performer.spread(events.installs_of(deeds))
        for word in words:
            self.performer.say(word)
        if self.performer.values is not None:
            self.performer.values.await_deltas()
        return list(self.calls)

    def installed(self) -> Rank:
        """With both fragments on a global value: 10 and 11."""
        self.perform(events.Bind(PLAN), INTRODUCE)
        self.perform(Install(V0, Align.OVERWRITE), Install(V1, Align.OVERWRITE))
        return self


@pytest.mark.parametrize("with_layout", [False, True])
def test_a_dial_says_hello_with_the_facts_of_the_effect(with_layout: bool) -> None:
    assert Rank().perform(events.Dial("n", with_layout, step=7, running=True)) == [
        Hello(
            island=1,
            nonce="n",
            fingerprint=LAYOUT.fingerprint,
            host=socket.gethostname(),
            pid=os.getpid(),
            instance="instance",
            step=7,
            ranks=4,
            layout=LAYOUT if with_layout else None,
            running=True,
        )
    ]


def test_an_introduction_tells_the_links_what_is_held_and_spent() -> None:
    rank = Rank()
    assert rank.perform(events.Bind(PLAN)) == [("model.bind", PLAN), ("bind", PLAN)]
    told = ("introduce", Pass("s", "g", "t"), CONTRACT, (V0,), frozenset({1}))
    assert rank.perform(INTRODUCE) == [told, ("joined", "s", "g")]


def test_installs_of_a_boundary_are_written_together_before_its_other_effects() -> None:
    rank, done = Rank(), Done("s", "g", 3)
    rank.perform(events.Bind(PLAN))
    effects = (Install(V0, Align.OVERWRITE), Install(V1, Align.OVERWRITE), events.Tell(done))
    written = ("write", {0: [10.0, 10.0], 1: [11.0, 11.0, 11.0]})
    assert rank.perform(*effects) == [("take", V0), ("take", V1), written, ("spread", [0, 1]), done]


def test_a_value_that_is_the_anchor_is_not_carried_to_other_ranks() -> None:
    rank = Rank().installed()
    assert rank.perform(Install(V0, Align.KEEP), Install(V1, Align.ANCHOR)) == [
        ("take", V0), ("write", {1: [11.0, 11.0, 11.0]}), ("spread", [1]),
    ]  # fmt: skip
    assert rank.perform(Install(V0, Align.KEEP)) == [("take", V0)]


def test_an_install_behind_another_effect_is_an_error_and_nothing_is_done() -> None:
    rank = Rank()
    rank.perform(events.Bind(PLAN))
    with pytest.raises(AssertionError, match="something comes before an install"):
        rank.perform(events.Tell(Done("s", "g", 3)), Install(V0, Align.OVERWRITE))
    assert rank.calls == []


def test_an_anchor_is_written_again_without_a_download() -> None:
    rank = Rank().installed()
    rank.model.values[0] += 1
    assert rank.perform(Install(V0, Align.ANCHOR)) == [("write", {0: [10.0, 10.0]}), ("spread", [0])]


def test_a_named_anchor_is_told_to_the_link_and_nothing_is_written() -> None:
    assert Rank().installed().perform(events.NameAnchor(V1)) == [("name held", V1)]


def test_exact_values_are_asked_for() -> None:
    assert Rank().installed().perform(events.FetchExactly((V0, V1))) == [("fetch exactly", (V0, V1))]


def test_initial_values_are_the_present_ones_where_there_is_no_anchor() -> None:
    rank = Rank()
    rank.perform(events.Bind(PLAN))
    assert rank.perform(events.ProvideInit(("u0", "u1"))) == [
        "provides init",
        ("offer", "u0", [1.0, 1.0], None),
        ("offer", "u1", [1.0, 1.0, 1.0], None),
    ]


@pytest.mark.parametrize(("keep", "carried"), [(True, 13.0), (False, None)])
def test_a_capture_offers_local_minus_anchor_and_keeps_the_local_values_if_told(
    keep: bool, carried: float | None
) -> None:
    rank = Rank().installed()
    rank.model.values[0] += 2
    assert rank.perform(events.Capture("p", 0, 5, keep)) == [("offer", "p", [2.0, 2.0], 0)]
    rank.model.values[0] += 3
    install = Install(ValueName(0, 2, "a2"), Align.CARRY)
    if carried is None:
        with pytest.raises(KeyError):
            rank.perform(install)
    else:
        assert rank.perform(install)[1:] == [("write", {0: [carried, carried]}), ("spread", [0])]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_forgotten_upload_is_forgotten_by_the_link_with_its_fate(arrived: bool) -> None:
    rank = Rank().installed()
    rank.perform(events.Capture("p", 0, 5))
    assert rank.perform(events.ForgetUpload("p", arrived)) == [("forget", "p", arrived)]


def test_a_rank_without_links_writes_its_part_and_says_nothing() -> None:
    rank = Rank(links=False)
    effects = (
        events.Dial("n", False, 0, False),
        events.Bind(PLAN),
        INTRODUCE,
        events.NameAnchor(V0),
        events.FetchExactly((V0,)),
        events.ProvideInit(("u0", "u1")),
        events.Tell(Done("s", "g", 3)),
    )
    assert rank.perform(*effects) == [("model.bind", PLAN)]
    assert rank.perform(Install(V0, Align.OVERWRITE)) == [("write", {0: [1.0, 1.0]}), ("spread", [0])]


def test_what_ends_or_interrupts_the_training_is_left_to_the_island() -> None:
    effects = (
        events.StopTraining("over"),
        events.SeekSyncer(),
        events.SaveNow("ordered"),
        events.Abort("ordered"),
        events.Fail("broken"),
    )
    assert all(isinstance(effect, events.TrainingEffect) for effect in effects)
    assert Rank().perform(*effects) == []


def test_an_effect_nobody_knows_is_an_error_that_names_it() -> None:
    with pytest.raises(AssertionError, match="Started"):
        Rank().perform(cast(events.Effect, events.Started()))
