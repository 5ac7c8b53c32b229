"""The syncer's process of a simulated world: how it performs effects on numbers, dies and comes back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import IslandMessage, Leave, Published, Refused, SyncerMessage, ValueName
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.simulate.worlds.plans import VALUE_BYTES
from swift_diloco.simulate.worlds.syncer_host import SyncerHost
from swift_diloco.simulate.worlds.syncer_parts import Generation, Surroundings
from swift_diloco.simulate.worlds.truth import History, Learned
from swift_diloco.simulate.worlds.world import Link, World
from syncer import events as ev
from syncer.brain.coordinator import Coordinator
from syncer.events import Effect, Event


class Script(Coordinator):
    """A brain that notes events and answers with what a test has put there."""

    def __init__(self, settings: SyncerSettings, session: str, tokens: Callable[[], str]) -> None:
        super().__init__(settings, session=session, tokens=tokens)
        self.heard: list[Event] = []
        self.answers: list[Effect] = []

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        self.heard.append(event)
        answers, self.answers = self.answers, []
        return answers


@dataclass
class Sender:
    """An island's process behind a bulk link."""

    island: int = 0
    alive: bool = True
    captures: dict[str, Learned] = field(default_factory=dict)
    damaged: bool = False

    def push_s(self, rank: int) -> float:
        return 2.5

    def spend_damage(self) -> bool:
        return self.damaged


class Syncer:
    """A host, its scripted brain and one island of one rank."""

    def __init__(self) -> None:
        self.world, self.history = World(1, delay_s=0.0, transfer_s=1.0), History()
        self.crashes: list[float] = []
        around = Surroundings(self._make, crashed=lambda: self.crashes.append(self.world.now))
        self.host = SyncerHost(self.world, SyncerSettings(), self.history, around)
        self.sender = Sender()
        self.sent: list[SyncerMessage] = []
        self.host.links["c0"] = Link("c0", 0, -1, self.host.receive, self.sent.append)
        self.host.links["b0"] = Link("b0", 0, 0, self.host.receive, self.sent.append)
        self.host.lives["b0"] = self.sender
        self.host.generations["g"] = Generation("c0", {0: "b0"})

    def _make(self, settings: SyncerSettings, session: str, tokens: Callable[[], str]) -> Coordinator:
        self.brain = Script(settings, session, tokens)
        return self.brain

    def perform(self, *effects: Effect, for_s: float = 100.0) -> list[Event]:
        """What the brain hears when these are performed and time goes by."""
        self.brain.heard.clear()
        self.brain.answers = list(effects)
        self.host.take(ev.TimePassed())
        self.world.run(lambda: False, self.world.now + for_s)
        return self.brain.heard[1:]

    def complete(self, *uploads: str, value: float = 1.0) -> None:
        for upload in uploads:
            self.sender.captures[upload] = Learned(value, frozenset({(0, "life", 1)}))
            self.perform(ev.OpenUpload(upload, "g", 0, Encoding.F32))

    def begin(self) -> ValueName:
        """The first value of fragment 0."""
        self.complete("init", value=4.0)
        (adopted,) = self.perform(ev.AdoptInit(("init",)))
        assert isinstance(adopted, ev.InitAdopted)
        return adopted.values[0]


@pytest.fixture
def syncer() -> Syncer:
    return Syncer()


def test_upload_tells_of_its_progress_and_of_its_end(syncer: Syncer) -> None:
    syncer.sender.captures["u"] = Learned(1.0, frozenset())
    heard = syncer.perform(ev.OpenUpload("u", "g", 0, Encoding.F32))
    assert heard == [ev.UploadProgressed("u")] * 3 + [ev.UploadCompleted("u", VALUE_BYTES)]
    assert syncer.host.bytes_pushed == VALUE_BYTES


@pytest.mark.parametrize("fault", ["not captured", "link down", "parted", "dead"])
def test_upload_waits_for_its_capture_and_its_link_and_goes_on_then(syncer: Syncer, fault: str) -> None:
    capture, link = Learned(1.0, frozenset()), syncer.host.links["b0"]
    if fault != "not captured":
        syncer.sender.captures["u"] = capture
    if fault == "link down":
        del syncer.host.links["b0"]
    if fault == "parted":
        syncer.world.part(0, 50.0)
    syncer.sender.alive = fault != "dead"
    assert syncer.perform(ev.OpenUpload("u", "g", 0, Encoding.F32), for_s=40.0) == []
    syncer.sender.captures["u"], syncer.sender.alive, syncer.host.links["b0"] = capture, True, link
    assert syncer.perform(for_s=40.0)[-1] == ev.UploadCompleted("u", VALUE_BYTES)


def test_upload_that_never_arrives_undamaged_fails(syncer: Syncer) -> None:
    syncer.sender.damaged = True
    syncer.sender.captures["u"] = Learned(1.0, frozenset())
    assert syncer.perform(ev.OpenUpload("u", "g", 0, Encoding.F32))[-1] == ev.UploadFailed("u", "damaged for good")
    assert syncer.host.uploads == {} and syncer.history.ended == syncer.history.opened


def test_end_of_a_generation_ends_what_is_not_complete(syncer: Syncer) -> None:
    syncer.complete("whole")
    syncer.perform(ev.OpenUpload("part", "g", 0, Encoding.F32), ev.ForgetGeneration("g", "lease"))
    assert set(syncer.host.uploads) == {"whole"} and syncer.host.generations == {}


def test_commit_publishes_the_weighted_mean_and_frees_its_uploads(syncer: Syncer) -> None:
    old = syncer.begin()
    syncer.complete("a", value=1.0)
    syncer.complete("b", value=-2.0)
    parts = (ev.MergeInput(0, "a", 3.0), ev.MergeInput(1, "b", 1.0))
    (finished,) = syncer.perform(ev.Merge(1, 1, 0, parts))
    assert isinstance(finished, ev.MergeFinished) and (finished.digest, finished.finite) == (repr(4.25), True)
    syncer.sent.clear()
    name = ValueName(0, 1, finished.digest)
    syncer.perform(ev.Commit(1, name, ("a", "b")))
    assert syncer.host.values == {name: 4.25} and old not in syncer.host.values and syncer.host.uploads == {}
    assert syncer.sent == [Published(syncer.host.session, "g", name, syncer.host.run)]
    assert [(each.t, each.push) for each in syncer.history.merged] == [(1, "a"), (1, "b")]
    assert syncer.history.published[-1] == (name, 4.25)


def test_delta_that_is_not_finite_names_its_island_and_a_discarded_merge_publishes_nothing(syncer: Syncer) -> None:
    name = syncer.begin()
    syncer.complete("a", value=math.inf)
    (finished,) = syncer.perform(ev.Merge(1, 1, 0, (ev.MergeInput(7, "a", 1.0),)))
    assert isinstance(finished, ev.MergeFinished) and (finished.finite, finished.offenders) == (False, (7,))
    syncer.perform(ev.DiscardMerge(1, ("a",)))
    assert syncer.host.present == {0: name} and syncer.host.uploads == {} and syncer.history.merged == []


@pytest.mark.parametrize(
    "effects",
    [
        (ev.OpenUpload("u", "nobody", 0, Encoding.F32),),
        (ev.OpenUpload("u", "g", 0, Encoding.F32), ev.OpenUpload("u", "g", 0, Encoding.F32)),
        (ev.Send("b0", Published("s", "g", ValueName(0, 0, "d"), "run")),),
    ],
    ids=["for nobody", "twice", "over a bulk link"],
)
def test_effect_that_no_coordinator_may_decide_raises(syncer: Syncer, effects: tuple[Effect, ...]) -> None:
    with pytest.raises(AssertionError):
        syncer.perform(*effects)


def test_effect_that_is_not_known_raises(syncer: Syncer) -> None:
    with pytest.raises(AssertionError, match="does not know nonsense"):
        syncer.perform("nonsense")  # type: ignore[arg-type]


def test_crash_performs_so_many_effects_more_and_messages_wait_for_the_next_process(syncer: Syncer) -> None:
    refused: list[Effect] = [ev.Send("c0", Refused("s", "g", str(i))) for i in range(3)]
    syncer.host.crash(2, 10.0)
    first = syncer.brain
    session = syncer.host.session
    syncer.perform(*refused, for_s=5.0)
    assert syncer.sent == [Refused("s", "g", "0"), Refused("s", "g", "1")]
    assert (syncer.host.down, len(syncer.crashes), syncer.world.fired) == (True, 1, {"crash": 1})
    message: IslandMessage = Leave("s", "g", "")
    syncer.host.receive("c1", message)
    syncer.host.receive("c2", message)
    syncer.host.links["c1"] = Link("c1", 1, -1, syncer.host.receive, syncer.sent.append)
    syncer.world.run(lambda: not syncer.host.down, 1000.0)
    assert syncer.brain is not first and syncer.host.session != session
    assert syncer.brain.heard == [ev.Received("c1", message)], "what came over a connection that is gone is lost"


def test_stop_ends_the_process_and_starts_it_again_and_another_exit_ends_the_world(syncer: Syncer) -> None:
    syncer.brain.answers = [ev.Exit(0, "told to stop, all is saved")]
    syncer.host.stop(4.0)
    assert syncer.host.down and syncer.history.durable == 0
    assert syncer.world.run(lambda: not syncer.host.down, 1000.0)
    ending = ev.Exit(0, "every island has saved the final cut", finished=True)
    syncer.perform(ending)
    assert syncer.host.exit == ending


def test_fetch_gets_the_value_that_is_there_when_it_arrives(syncer: Syncer) -> None:
    name, told = syncer.begin(), list[float | None]()
    syncer.host.fetch(name, ("g", 0), 3.0, told.append)
    syncer.host.fetch(ValueName(0, 9, "other"), ("g", 0), 3.0, told.append)
    syncer.host.fetch(name, ("another", 0), 3.0, told.append)
    syncer.world.run(lambda: len(told) == 3, 1000.0)
    assert told == [4.0, None, None] and syncer.host.bytes_fetched == VALUE_BYTES
