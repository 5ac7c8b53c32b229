"""How an island's ranks stand together at a boundary, and what its trainer is told; without a syncer or a socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from swift_diloco.core.errors import DilocoError, PeerError, UserError
from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import make_layout
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.core.story.recorder import Story
from swift_diloco.island import events
from swift_diloco.island.brain.session import Session
from swift_diloco.island.brain.stages import Profile, TrainingStage
from swift_diloco.island.files.record import NOTHING_RESUMED
from swift_diloco.island.island import Instruction, Island, JobFacts
from swift_diloco.island.numbers.host_buffers import HostBuffers
from swift_diloco.island.performer import Introduction, Links, Performer
from tests.fakes.group import ThreadGroup
from tests.fakes.quadratic import SPECS, QuadraticModel

LAYOUT = make_layout(SPECS)
BIND = events.Bind(FragmentPlan((tuple(range(len(SPECS))),)))
V1 = ValueName(0, 1, "a")


class Script:
    """A session that answers each kind of event with the effects it was given for it."""

    def __init__(self, effects: dict[type, list[events.Effect]]) -> None:
        self.effects = effects
        self.stage = TrainingStage.TRAINING
        self.wants: tuple[ValueName, ...] = ()
        self.seen: list[events.Event] = []

    def handle(self, event: events.Event, *, now: float) -> list[events.Effect]:
        self.seen.append(event)
        return self.effects.get(type(event), [])

    def may_train(self, now: float) -> bool:
        return True

    def wanted(self) -> tuple[ValueName, ...]:
        return self.wants


class Model(QuadraticModel):
    """Cannot be bound where `broken`."""

    broken = False

    def bind(self, pieces: PieceMap) -> None:
        if self.broken:
            raise OSError("this rank's memory is gone")
        super().bind(pieces)


class Staged(Performer):
    """Has some wanted values; keeps what it must give back."""

    here: Sequence[ValueName] = ()
    released: Sequence[ValueName] = ()
    said: Sequence[events.Word] = ()
    fault: DilocoError | None = None
    mute = False

    def check(self) -> None:
        if self.fault is not None:
            raise self.fault

    def say(self, word: events.Word) -> None:
        if self.mute:
            raise OSError("mute")
        self.said = (*self.said, word)

    def reserve(self, wanted: Sequence[ValueName]) -> list[bool]:
        return [name in self.here for name in wanted]

    def release(self, name: ValueName) -> None:
        self.released = (*self.released, name)


def island_of(group: ThreadGroup, *, effects: dict[type, list[events.Effect]] | None = None) -> Island:
    """An island that has started, without links."""
    model = Model(group.rank, group.size, start=0.0, target=1.0)
    island = Island(IslandSettings(), model, group, JobFacts(0, "i", lambda: "nowhere"))
    island.session = cast(Session, Script(effects or {}))
    island.story = Story("island-0", island.session)
    boxes = tuple(sorted(model.boxes(LAYOUT)))
    about = Introduction(0, "i", LAYOUT, boxes, group.size)
    island.performer = Staged(model, Links(None, None, HostBuffers()), about, NOTHING_RESUMED)
    return island


def on_ranks(islands: Sequence[Island], work: Callable[[Island], object]) -> list[object]:
    """What `work` returns or raises on each rank."""

    def one(island: Island) -> object:
        try:
            return work(island)
        except Exception as error:
            return type(error), str(error)

    with ThreadPoolExecutor(len(islands)) as pool:
        return list(pool.map(one, islands))


def alone(effects: dict[type, list[events.Effect]] | None = None) -> Island:
    return island_of(ThreadGroup.make(1)[0], effects=effects)


def test_a_boundary_feeds_the_step_first_and_then_what_all_ranks_have_staged() -> None:
    islands = [island_of(group) for group in ThreadGroup.make(2)]
    other = ValueName(1, 1, "b")
    for island in islands:
        cast(Script, island.session).wants = (V1, other)
        cast(Staged, island.performer).here = (V1, other) if island.group.rank else (V1,)
    assert on_ranks(islands, lambda island: island.step_ended(1, trained=True, tokens=5)) == [Instruction()] * 2
    for island in islands:
        assert cast(Script, island.session).seen == [events.StepEnded(1, True, 5), events.BoundaryReached((V1,))]
    assert [cast(Staged, island.performer).released for island in islands] == [(), (other,)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_is_said_or_done_after_a_deed_that_failed_on_any_rank(ranks: int) -> None:
    effects: list[events.Effect] = [BIND, events.Log("error", "said"), events.StopTraining("told")]
    islands = [island_of(group, effects={events.StepEnded: effects}) for group in ThreadGroup.make(ranks)]
    cast(Model, islands[-1].model).broken = True
    *others, broken = on_ranks(islands, lambda island: island.step_ended(1, trained=True, tokens=5))
    assert broken == (OSError, "this rank's memory is gone")
    assert others == [(DilocoError, "rank 1: this rank's memory is gone")] * (ranks - 1)
    for island in islands:
        assert cast(Script, island.session).seen == [events.StepEnded(1, True, 5)]
        assert island.instruction == Instruction() and cast(Staged, island.performer).said == ()


def test_what_a_link_could_not_do_fails_the_next_boundary_on_all_in_its_words() -> None:
    islands = [island_of(group) for group in ThreadGroup.make(2)]
    cast(Staged, islands[1].performer).fault = PeerError("the bulk link is lost")
    assert (
        on_ranks(islands, lambda island: island.step_ended(1, trained=True, tokens=5))
        == [(DilocoError, "rank 1: the bulk link is lost")] * 2
    )


def test_a_word_that_rank_0_cannot_say_fails_the_next_boundary_on_all() -> None:
    said: list[events.Effect] = [events.Log("info", "said")]
    islands = [island_of(group, effects={events.StepEnded: said}) for group in ThreadGroup.make(2)]
    cast(Staged, islands[0].performer).mute = True
    assert on_ranks(islands, lambda island: island.step_ended(1, trained=True, tokens=5)) == [
        (OSError, "mute"), (DilocoError, "rank 0: mute"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("effect", "instruction"),
    [
        (events.StopTraining("over"), Instruction(stop=True, reason="over")),
        (events.StopTraining("ordered", final=False), Instruction(stop=True, final=False, reason="ordered")),
        (events.SaveNow("ordered"), Instruction(save=True, reason="ordered")),
    ],
)
def test_the_trainer_is_told_what_the_session_wants(effect: events.Effect, instruction: Instruction) -> None:
    island = alone({events.BoundaryReached: [effect]})
    assert island.step_ended(1, trained=True, tokens=5) == instruction == island.instruction


def test_a_save_is_ordered_once_and_an_order_to_stop_stays() -> None:
    island = alone({events.BoundaryReached: [events.SaveNow("s"), events.StopTraining("over", final=False)]})
    stop = Instruction(stop=True, save=True, final=False, reason="over")
    assert island.step_ended(1, trained=True, tokens=5) == stop
    cast(Script, island.session).effects.clear()
    stays = Instruction(stop=True, final=False, reason="over")
    assert island.step_begins() == stays and island.step_ended(2, trained=True, tokens=5) == stays


@pytest.mark.parametrize(
    ("effect", "kind"), [(events.Abort("an operator aborted"), PeerError), (events.Fail("refused"), UserError)]
)
def test_what_ends_the_island_is_raised_as_whose_fault_it_is(effect: events.Effect, kind: type[DilocoError]) -> None:
    island = alone({events.BoundaryReached: [effect]})
    with pytest.raises(kind, match=effect.reason):  # type: ignore[union-attr]
        island.step_ended(1, trained=True, tokens=5)


def test_an_island_without_fragments_saves_no_record(tmp_path: Path) -> None:
    island = alone()
    island.session = Session(Profile(0, "life"))
    island.save(tmp_path, 3)
    assert list(tmp_path.iterdir()) == []


def test_an_island_that_did_not_start_closes_without_a_word() -> None:
    group = ThreadGroup.make(1)[0]
    model = QuadraticModel(0, 1, start=0.0, target=1.0)
    island = Island(IslandSettings(), model, group, JobFacts(0, "i", lambda: "nowhere"))
    island.close(ValueError("before the start"))
    island.close()
