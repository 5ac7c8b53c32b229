"""The island's brain: every rule as a claim about whole lists of effects."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats.messages import (
    BudgetReached,
    Command,
    Contract,
    CutInstalled,
    Done,
    Dropped,
    FinalCut,
    InitWanted,
    Joined,
    LayoutWanted,
    Leave,
    Outcome,
    Paused,
    PauseOver,
    Published,
    Pull,
    PullClosed,
    PushAnswer,
    PushOffer,
    Refused,
    Saved,
    Stopping,
    SyncerMessage,
    Unknown,
    ValueName,
    Welcome,
)
from swift_diloco.core.formats.operator_messages import Order
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.island import events
from swift_diloco.island.brain.session import REDIAL_S, REFUSED_REDIAL_S, Session
from swift_diloco.island.brain.stages import Membership, Profile, TrainingStage
from swift_diloco.island.events import Align, Capture, Install, Introduce, Tell
from swift_diloco.island.remembered import AnchorRecord, Remembered

PLAN = FragmentPlan(((0,), (1,)))
CONTRACT = Contract(sync_every_steps=3, island_lease_s=60.0)
V0 = (ValueName(0, 0, "a0"), ValueName(1, 0, "b0"))


class World:
    """A session and the syncer's side of its conversation."""

    def __init__(self, contract: Contract = CONTRACT) -> None:
        self.session = Session(Profile(island=1, life="life"))
        self.contract = contract
        self.now = 0.0
        self.feed(events.Started())

    def feed(self, event: events.Event) -> list[events.Effect]:
        effects = self.session.handle(event, now=self.now)
        self.session.validate()
        return effects

    def hear(self, message: SyncerMessage) -> list[events.Effect]:
        return self.feed(events.Heard(message))

    def boundary(self, *staged: ValueName) -> list[events.Effect]:
        return self.feed(events.BoundaryReached(staged))

    def step(self, tokens: int = 10, *, trained: bool = True) -> None:
        self.feed(events.StepEnded(self.session.step + 1, trained, tokens))

    def welcome(self, values: tuple[ValueName, ...] = (), held: tuple[ValueName, ...] = (), life: int = 1) -> Welcome:
        return Welcome(
            session=f"s{life}",
            generation=f"g{life}",
            nonce=self.session._nonce(),
            token="t",
            run="r",
            contract=self.contract,
            plan=PLAN,
            values=values,
            held=held,
        )

    def introduce(self, held: tuple[ValueName, ...] = (), spent: tuple[int, ...] = (), life: int = 1) -> Introduce:
        return Introduce(f"s{life}", f"g{life}", "t", self.contract, held, frozenset(spent))

    def joined(self, values: tuple[ValueName, ...] = V0) -> World:
        self.hear(self.welcome(values))
        self.hear(Joined("s1", "g1"))
        return self

    def training(self) -> World:
        self.joined()
        self.boundary(*V0)
        assert self.session.stage is TrainingStage.TRAINING
        return self

    def pull(self, fragment: int = 0, t: int = 1, attempt: int = 1) -> list[events.Effect]:
        return self.hear(Pull("s1", "g1", t, fragment, attempt))

    def offer(self, n: int, anchor: ValueName, steps: int, *, t: int = 1, attempt: int = 1) -> Tell:
        at = self.session.step
        return Tell(PushOffer("s1", "g1", f"g1.{n}", t, attempt, anchor, steps, steps * 10, at))


def published(name: ValueName) -> Published:
    return Published("s1", "g1", name)


# -- joining -----------------------------------------------------------------------------------------------------------


def test_start_dials_without_the_layout_and_sends_it_when_wanted() -> None:
    session = Session(Profile(island=0, life="x"))
    assert session.handle(events.Started(), now=0.0) == [events.Dial("x.1", False, step=0, running=False)]
    wanted = events.Heard(LayoutWanted("s1", "x.1"))
    assert session.handle(wanted, now=0.0) == [events.Dial("x.2", True, step=0, running=False)]


def test_an_unanswered_hello_is_repeated_after_its_pause_only() -> None:
    world = World()
    world.now = REDIAL_S - 0.01
    assert world.boundary() == []
    world.now = REDIAL_S
    assert world.boundary() == [events.Dial("life.2", False, step=0, running=False)]


def test_an_answer_to_an_earlier_hello_is_not_taken() -> None:
    world = World()
    stale = world.welcome()
    world.now = REDIAL_S
    world.boundary()
    assert world.hear(stale) == []
    assert world.session.membership is Membership.DIALING


def test_welcome_binds_the_fragments_and_introduces_the_ranks() -> None:
    world = World()
    assert world.hear(world.welcome()) == [events.Bind(PLAN), world.introduce()]
    assert world.session.membership is Membership.JOINING


def test_a_final_refusal_fails_a_starting_island_and_only_delays_a_running_one() -> None:
    refused = Refused("s1", "", "island 1 is host h, pid 7")
    assert World().hear(Refused("", "life.1", "no")) == [events.Fail("the syncer refused island 1: no")]
    world = World().training()
    world.feed(events.LinkLost())
    world.now = REFUSED_REDIAL_S / 2
    assert [type(e) for e in world.hear(refused)] == [events.Log]
    world.now += REFUSED_REDIAL_S
    assert world.boundary() == [events.Dial("life.3", False, step=0, running=True)]


def test_a_member_whose_message_was_not_taken_says_so_and_stays_one() -> None:
    world = World().training()
    refused = Refused("s1", "", "Saved of island 1 came while the run is training", retry=True)
    text = "the syncer did not take a message of this island: Saved of island 1 came while the run is training"
    assert world.hear(refused) == [events.Log("warning", text)]
    world.now += 2 * REFUSED_REDIAL_S
    assert world.boundary() == [] and world.session.membership is Membership.MEMBER


def test_an_island_that_is_joining_and_whose_message_was_not_taken_goes_on_joining() -> None:
    world = World()
    world.hear(world.welcome(V0))
    refused = Refused("s1", "", "Done of island 1 came while it is joining", retry=True)
    text = "the syncer did not take a message of this island: Done of island 1 came while it is joining"
    assert world.hear(refused) == [events.Log("warning", text)]
    assert world.hear(Joined("s1", "g1"))[0] == events.Log("info", "joined the syncer as island 1")


@pytest.mark.parametrize("welcomed", [False, True])
def test_a_refused_island_that_is_told_to_try_again_does_so_from_the_start(welcomed: bool) -> None:
    world = World()
    if welcomed:
        world.hear(world.welcome(V0))
    text = f"refused by the syncer, trying again in {REFUSED_REDIAL_S:g} s: the pieces do not make up the model"
    refused = Refused("s1", "life.1", "the pieces do not make up the model", retry=True)
    assert world.hear(refused) == [events.Log("warning", text)]
    world.now += REFUSED_REDIAL_S - 1.0
    assert world.boundary() == [] and world.session.wanted() == ()
    world.now += 1.0
    assert world.boundary() == [events.Dial("life.2", False, step=0, running=False)]
    assert world.hear(world.welcome(V0, life=2))[-1] == world.introduce(life=2)


def test_a_link_that_breaks_before_the_first_hello_changes_nothing() -> None:
    session = Session(Profile(island=1, life="life"))
    assert session.handle(events.LinkLost(), now=0.0) == []
    assert session.handle(events.Left("why"), now=0.0) == []
    assert session.handle(events.Started(), now=0.0) == [events.Dial("life.1", False, step=0, running=False)]


def test_messages_of_another_session_or_generation_change_nothing() -> None:
    world = World().training()
    for message in (
        Published("s0", "g1", ValueName(0, 1, "a1")),
        Published("s1", "g0", ValueName(0, 1, "a1")),
        Paused("s1", "g0", "old", 1),
        Unknown("s1", "g0", "old"),
    ):
        assert world.hear(message) == []
    assert world.session.wanted() == () and world.session.may_train(0.0)


# -- initial values ----------------------------------------------------------------------------------------------------


def test_initial_values_are_overwritten_fragment_by_fragment_and_then_training_begins() -> None:
    world = World().joined()
    assert world.session.wanted() == V0
    assert world.boundary(V0[1]) == [Install(V0[1], Align.OVERWRITE)]
    assert not world.session.may_train(world.now)
    *installs, log = world.boundary(V0[0])
    assert installs == [Install(V0[0], Align.OVERWRITE)]
    assert isinstance(log, events.Log) and world.session.may_train(world.now)


def test_the_island_that_provides_the_initial_values_downloads_none_of_them() -> None:
    world = World().joined(values=())
    provide, _ = world.hear(InitWanted("s1", "g1", ("u0", "u1")))
    assert provide == events.ProvideInit(("u0", "u1"))
    assert world.hear(published(V0[0])) == [events.NameAnchor(V0[0])]
    assert world.hear(published(V0[1])) == [events.NameAnchor(V0[1])]
    assert world.session.wanted() == ()
    world.boundary()
    assert world.session.may_train(world.now)


# -- pulls and pushes --------------------------------------------------------------------------------------------------


def test_a_pull_is_answered_only_after_h_successful_steps_since_the_install() -> None:
    world = World().training()
    world.pull()
    for trained in (True, False, True):
        world.step(trained=trained)
        assert world.boundary() == []
    world.step()
    assert world.boundary() == [Capture("g1.1", 0, 3), world.offer(1, V0[0], 3)]


def test_an_anchor_is_pushed_once_until_the_next_install() -> None:
    world = World().training()
    world.pull(t=1)
    for _ in range(3):
        world.step()
    assert len(world.boundary()) == 2
    world.hear(PushAnswer("s1", "g1", "g1.1", Outcome.HELD))
    world.pull(t=3)
    for _ in range(9):
        world.step()
        assert world.boundary() == []


def test_a_dropped_push_releases_its_anchor_with_all_the_progress_since() -> None:
    world = World().training()
    world.pull(t=1)
    for _ in range(3):
        world.step()
    world.boundary()
    world.step()
    forget, _ = world.hear(Dropped("s1", "g1", "g1.1", "attempt over"))
    assert forget == events.ForgetUpload("g1.1", arrived=False)
    world.pull(t=1, attempt=2)
    assert world.boundary() == [Capture("g1.2", 0, 4), world.offer(2, V0[0], 4, attempt=2)]


@pytest.mark.parametrize(("anchor_held", "answers"), [(False, 2), (True, 0)])
def test_only_the_refusal_anchor_held_leaves_the_anchor_spent(anchor_held: bool, answers: int) -> None:
    world = World().training()
    world.pull()
    for _ in range(3):
        world.step()
    world.boundary()
    world.hear(PushAnswer("s1", "g1", "g1.1", Outcome.REFUSED, "why", anchor_held))
    world.pull(t=3)
    assert len(world.boundary()) == answers


def test_installs_come_before_pushes_and_reset_the_counters() -> None:
    world = World().training()
    v1 = ValueName(0, 1, "a1")
    for _ in range(3):
        world.step()
    world.pull(fragment=0, t=3)
    world.pull(fragment=1, t=2)
    world.hear(published(v1))
    assert world.boundary(v1) == [
        Install(v1, Align.OVERWRITE),
        Capture("g1.1", 1, 3),
        world.offer(1, V0[1], 3, t=2),
    ]
    assert (world.session.anchors[0].steps, world.session.anchors[0].tokens) == (0, 0)


def test_a_pull_waits_for_a_publication_that_is_not_staged_yet() -> None:
    world = World().training()
    for _ in range(3):
        world.step()
    world.pull(t=3)
    world.hear(published(ValueName(0, 1, "a1")))
    assert world.boundary() == []


def test_a_closed_pull_is_not_answered() -> None:
    world = World().training()
    world.pull()
    world.hear(PullClosed("s1", "g1", 1, 0))
    for _ in range(4):
        world.step()
    assert world.boundary() == []


def test_blend_keeps_the_contracts_share_of_the_local_value() -> None:
    world = World(Contract(sync_every_steps=3, align="blend", alpha=0.25)).training()
    v1 = ValueName(0, 1, "a1")
    world.hear(published(v1))
    assert world.boundary(v1) == [Install(v1, Align.BLEND, 0.25)]


def test_carry_counts_only_the_steps_since_the_capture() -> None:
    world = World(Contract(sync_every_steps=3, align="carry")).training()
    world.pull()
    for _ in range(3):
        world.step()
    world.boundary()
    world.step(tokens=7)
    v1 = ValueName(0, 1, "a1")
    world.hear(published(v1))
    assert world.boundary(v1) == [Install(v1, Align.CARRY)]
    assert (world.session.anchors[0].steps, world.session.anchors[0].tokens) == (1, 7)


def test_carry_keeps_everything_when_nothing_was_pushed() -> None:
    world = World(Contract(sync_every_steps=3, align="carry")).training()
    world.step(tokens=7)
    v1 = ValueName(0, 1, "a1")
    world.hear(published(v1))
    assert world.boundary(v1) == [Install(v1, Align.SHIFT)]
    assert (world.session.anchors[0].steps, world.session.anchors[0].tokens) == (1, 7)


# -- losing and finding the syncer -------------------------------------------------------------------------------------


def test_a_redial_that_missed_nothing_downloads_and_writes_nothing() -> None:
    world = World().training()
    world.step()
    world.feed(events.LinkLost())
    world.hear(world.welcome(V0, life=2))
    assert world.session.wanted() == ()
    assert world.session.anchors[0].steps == 1


def test_a_redial_that_missed_a_version_keeps_unpushed_progress() -> None:
    world = World().training()
    world.step()
    world.feed(events.LinkLost())
    v5 = ValueName(0, 5, "a5")
    world.hear(world.welcome((v5, V0[1]), life=2))
    summary = "global values of 2 fragments: 1 kept, 1 shifted, 0 overwritten, 0 missing"
    assert world.boundary(v5) == [Install(v5, Align.SHIFT), events.Log("info", summary)]
    assert world.session.anchors[0].steps == 1


def test_a_push_of_unknown_fate_is_settled_by_what_the_syncer_holds() -> None:
    for held, spent in (((V0[0],), True), ((), False)):
        world = World().training()
        world.pull()
        for _ in range(3):
            world.step()
        world.boundary()
        world.feed(events.LinkLost())
        world.hear(world.welcome(V0, held, life=2))
        assert world.session.anchors[0].spent is spent


def test_a_silent_syncer_is_given_up_after_the_lease() -> None:
    world = World().training()
    world.now = 60.0
    assert world.boundary() == []
    world.now = 60.1
    log, dial = world.boundary()
    assert isinstance(log, events.Log) and dial == events.Dial("life.2", False, step=0, running=True)
    assert world.session.may_train(world.now)


# -- pause and finish --------------------------------------------------------------------------------------------------


def test_a_pause_stops_training_until_it_is_over_or_the_syncer_unheard() -> None:
    world = World().training()
    world.hear(Paused("s1", "g1", "1 of 2 islands", 1))
    assert not world.session.may_train(world.now)
    assert world.session.waiting_for() == "1 more island(s): 1 of 2 islands"
    assert world.session.may_train(world.now + 60.1)
    world.hear(PauseOver("s1", "g1"))
    assert world.session.may_train(world.now)


def test_a_done_island_answers_below_the_h_gate_and_then_with_nothing() -> None:
    world = World().training()
    world.step()
    assert world.feed(events.LastStepReached()) == [Tell(Done("s1", "g1", 1))]
    world.pull(t=1)
    assert world.boundary() == [Capture("g1.1", 0, 1), world.offer(1, V0[0], 1)]
    v1 = ValueName(0, 1, "a1")
    world.hear(published(v1))
    world.pull(t=3)
    assert world.boundary(v1) == [Install(v1, Align.OVERWRITE), world.offer(2, v1, 0, t=3)]


def test_the_final_cut_is_written_even_where_its_version_is_held() -> None:
    world = World().training()
    world.step()
    world.feed(events.LastStepReached())
    v1 = ValueName(0, 1, "a1")
    world.hear(FinalCut("s1", "g1", (v1, V0[1])))
    assert world.boundary() == []
    assert world.boundary(v1) == [
        Install(v1, Align.OVERWRITE),
        Install(V0[1], Align.ANCHOR),
        Tell(CutInstalled("s1", "g1")),
    ]
    assert world.session.stage is TrainingStage.FINISHED
    assert world.feed(events.SaveFinished()) == [Tell(Saved("s1", "g1"))]


def finished() -> World:
    world = World().training()
    world.feed(events.LastStepReached())
    world.hear(FinalCut("s1", "g1", V0))
    world.boundary()
    world.feed(events.LinkLost())
    return world


def test_a_finished_island_that_lost_its_link_says_saved_once_the_cut_was_said_again() -> None:
    world = World().training()
    world.feed(events.LastStepReached())
    world.hear(FinalCut("s1", "g1", V0))
    world.boundary()
    assert world.session.stage is TrainingStage.FINISHED and not world.session.parted()
    world.feed(events.LinkLost())
    assert world.session.parted()
    world.hear(world.welcome(V0, life=2))
    world.hear(Joined("s2", "g2"))
    assert world.session.parted()
    assert world.hear(FinalCut("s2", "g2", V0)) == [Tell(CutInstalled("s2", "g2"))]
    assert not world.session.parted()
    assert world.feed(events.SaveFinished()) == [Tell(Saved("s2", "g2"))]


def test_a_finished_island_takes_no_values_from_a_welcome_and_provides_none() -> None:
    world = finished()
    older = (ValueName(0, 7, "a7"), V0[1])
    assert world.hear(world.welcome(older, life=2)) == [world.introduce(V0, life=2)]
    world.hear(Joined("s2", "g2"))
    assert world.session.wanted() == ()
    (log,) = world.hear(InitWanted("s2", "g2", ("u0", "u1")))
    assert isinstance(log, events.Log) and log.text.startswith("InitWanted from the syncer is not taken")
    assert world.boundary(older[0]) == []


def test_a_finished_island_says_of_no_other_cut_that_it_is_installed() -> None:
    world = finished()
    world.hear(world.welcome(V0, life=2))
    world.hear(Joined("s2", "g2"))
    text = "the syncer's final cut is another one than is in the model; it is not installed"
    assert world.hear(FinalCut("s2", "g2", (ValueName(0, 7, "a7"), V0[1]))) == [events.Log("error", text)]
    assert world.session.parted()
    assert world.hear(FinalCut("s2", "g2", V0)) == [Tell(CutInstalled("s2", "g2"))]


def test_a_pause_ends_a_lease_after_its_generations_last_word_whoever_refuses_the_island_since() -> None:
    world = World().training()
    world.hear(Paused("s1", "g1", "1 of 2 islands", 1))
    world.feed(events.LinkLost())
    for _ in range(5):
        world.now += 15.0
        world.boundary()
        world.hear(Refused("s9", world.session._nonce(), "another run"))
    assert world.now == 75.0 and world.session.may_train(world.now)
    assert not world.session.may_train(59.0)


def test_a_finished_island_that_found_no_syncer_again_tells_people_instead() -> None:
    world = finished()
    text = "saved, but the syncer could not be told: it waits a while before it ends"
    assert world.feed(events.SaveFinished()) == [events.Log("warning", text)]


def test_an_island_that_saved_before_the_end_of_the_run_or_failed_leaves() -> None:
    assert World().training().feed(events.SaveFinished()) == [
        Tell(Leave("s1", "g1", "it stopped before the end of the run"))
    ]
    assert World().training().feed(events.Left("ValueError: no")) == [Tell(Leave("s1", "g1", "ValueError: no"))]


def test_an_island_without_a_generation_leaves_without_a_word() -> None:
    assert World().feed(events.Left("why")) == []
    lost = World().training()
    lost.feed(events.LinkLost())
    assert lost.feed(events.SaveFinished()) == []


def test_what_a_boundary_installs_comes_first_whatever_else_it_brings() -> None:
    world = World().training()
    world.step()
    world.feed(events.LastStepReached())
    world.hear(Command("s1", "g1", Order.SAVE))
    world.hear(FinalCut("s1", "g1", V0))
    save = events.SaveNow("an operator asked for it: no reason given")
    assert world.boundary() == [
        *(Install(name, Align.ANCHOR) for name in V0), save, Tell(CutInstalled("s1", "g1"))
    ]  # fmt: skip


def test_the_outer_budget_ends_training_at_the_next_boundary() -> None:
    world = World().training()
    world.hear(BudgetReached("s1", "g1", 4))
    assert world.boundary() == [events.StopTraining("the run's 4 outer steps are taken")]


def test_an_island_that_joins_after_the_final_cut_takes_it_and_stops() -> None:
    world = World().joined()
    world.hear(FinalCut("s1", "g1", V0))
    *installs, _, stop = world.boundary(*V0)
    assert installs == [Install(name, Align.OVERWRITE) for name in V0]
    assert stop == events.StopTraining("the run is finished")
    assert world.feed(events.LastStepReached()) == [Tell(Done("s1", "g1", 0))]
    assert world.boundary() == [Tell(CutInstalled("s1", "g1"))]


def test_a_new_version_with_the_same_bits_is_an_install_like_any_other() -> None:
    world = World().training()
    world.pull()
    for _ in range(3):
        world.step()
    world.boundary()
    unchanged = ValueName(0, 1, "a0")
    world.hear(published(unchanged))
    assert world.boundary(unchanged) == [Install(unchanged, Align.OVERWRITE)]
    assert not world.session.anchors[0].spent


def test_a_link_cut_while_the_final_cut_is_fetched_does_not_finish_with_stale_anchors() -> None:
    world = World().training()
    world.feed(events.LastStepReached())
    world.hear(FinalCut("s1", "g1", (ValueName(0, 1, "a1"), V0[1])))
    world.feed(events.LinkLost())
    assert world.boundary() == []
    assert world.session.stage is TrainingStage.DONE


def test_a_step_trained_past_the_final_cut_is_overwritten_by_it() -> None:
    world = World().joined()
    world.hear(FinalCut("s1", "g1", V0))
    world.boundary(*V0)
    world.step()
    world.boundary()
    world.feed(events.LastStepReached())
    assert world.boundary() == [*(Install(name, Align.ANCHOR) for name in V0), Tell(CutInstalled("s1", "g1"))]


def test_carry_after_an_empty_push_keeps_all_progress() -> None:
    world = World(Contract(sync_every_steps=3, align="carry")).training()
    world.feed(events.LastStepReached())
    world.pull()
    assert world.boundary() == [world.offer(1, V0[0], 0)]
    v1 = ValueName(0, 1, "a1")
    world.hear(published(v1))
    assert world.boundary(v1) == [Install(v1, Align.SHIFT)]


def test_a_dropped_push_of_an_earlier_life_releases_its_anchor_by_name() -> None:
    world = World()
    world.hear(world.welcome(V0))
    world.hear(Joined("s1", "g1"))
    world.boundary(*V0)
    world.feed(events.LinkLost())
    world.hear(world.welcome(V0, held=(V0[0],), life=2))
    assert world.session.anchors[0].spent
    world.hear(Dropped("s2", "g2", "g0.7", "void", V0[0]))
    assert not world.session.anchors[0].spent


BF16 = Contract(sync_every_steps=3, island_lease_s=60.0, publish_encoding="bf16")


def test_with_a_coarser_publication_the_final_cut_is_fetched_exactly_also_where_it_is_held() -> None:
    world = World(BF16).training()
    assert world.hear(FinalCut("s1", "g1", V0)) == [events.FetchExactly(V0)]
    assert world.session.wanted() == V0
    assert world.boundary() == [events.StopTraining("the run is finished")]
    world.feed(events.LastStepReached())
    effects = world.boundary(*V0)
    assert effects == [*(Install(name, Align.OVERWRITE) for name in V0), Tell(CutInstalled("s1", "g1"))]
    assert world.session.stage is TrainingStage.FINISHED
    assert world.hear(FinalCut("s1", "g1", V0)) == [Tell(CutInstalled("s1", "g1"))]


def test_with_a_coarser_publication_the_provider_of_the_initial_values_installs_them_like_everybody() -> None:
    world = World(BF16).joined(())
    world.hear(InitWanted("s1", "g1", ("u0", "u1")))
    for name in V0:
        assert world.hear(published(name)) == []
    assert world.session.wanted() == V0
    assert [effect for effect in world.boundary(*V0) if isinstance(effect, Install)] == [
        Install(name, Align.OVERWRITE) for name in V0
    ]


def test_a_member_whose_link_breaks_looks_for_its_syncer_unless_it_was_told_of_the_stop() -> None:
    world = World().training()
    assert world.feed(events.LinkLost())[-1] == events.SeekSyncer()
    assert events.SeekSyncer() not in world.feed(events.LinkLost())
    told = World().training()
    told.hear(Stopping("s1", "g1", "told to stop"))
    assert events.SeekSyncer() not in told.feed(events.LinkLost())


# -- effects carry their facts -----------------------------------------------------------------------------------------


def first_dial(profile: Profile, remembered: Remembered | None = None) -> list[events.Effect]:
    return Session(profile, remembered).handle(events.Started(), now=0.0)


def test_an_island_runs_when_it_stands_on_global_values_whether_it_trains_yet_or_not() -> None:
    record = Remembered("r", PLAN, tuple(AnchorRecord(n.version, n.digest) for n in V0), with_values=True)
    fresh_and_training = Profile(1, "x", initial_cut_timeout_s=0.0)
    resumed_and_waiting = Profile(1, "x", step=40)
    assert first_dial(fresh_and_training) == [events.Dial("x.1", False, step=0, running=False)]
    assert first_dial(resumed_and_waiting, record) == [events.Dial("x.1", False, step=40, running=True)]


def test_a_dial_tells_the_step_the_island_stands_at() -> None:
    world = World().training()
    world.step()
    assert world.feed(events.LinkLost())[1:] == [
        events.Dial("life.2", False, step=1, running=True),
        events.SeekSyncer(),
    ]


def test_the_introduction_after_a_redial_tells_what_is_held_and_spent_now() -> None:
    world = World().training()
    world.pull()
    for _ in range(3):
        world.step()
    world.boundary()
    world.feed(events.LinkLost())
    newer = ValueName(1, 9, "b9")
    assert world.hear(world.welcome((V0[0], newer), held=(V0[0],), life=2)) == [world.introduce(V0, (0,), life=2)]


def test_a_capture_keeps_the_local_values_where_installs_carry_progress() -> None:
    world = World(Contract(sync_every_steps=3, align="carry")).training()
    world.pull()
    for _ in range(3):
        world.step()
    assert world.boundary() == [Capture("g1.1", 0, 3, keep=True), world.offer(1, V0[0], 3)]


def test_what_became_of_the_values_is_told_when_the_wait_for_them_ends() -> None:
    world = World().joined()
    world.boundary(V0[0])
    summary = "global values of 2 fragments: 0 kept, 0 shifted, 1 overwritten, 1 missing"
    assert world.feed(events.StartEnded()) == [events.Log("info", summary)]
    assert world.feed(events.StartEnded()) == []


def test_an_event_that_a_session_does_not_know_is_named() -> None:
    with pytest.raises(AssertionError, match="str is no event of an island"):
        World().feed("no event at all")  # type: ignore[arg-type]
