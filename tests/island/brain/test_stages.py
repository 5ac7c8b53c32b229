"""The whole tables of an island's states, and every message in every state it is not for."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest

from swift_diloco.core.formats import messages as m
from swift_diloco.core.formats.messages import SyncerMessage
from swift_diloco.core.formats.operator_messages import AdminReply, Order
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.island import events
from swift_diloco.island.brain.session import Session
from swift_diloco.island.brain.stages import (
    HEARD,
    MEMBERSHIPS,
    STAGES,
    Membership,
    Profile,
    TrainingStage,
    follow,
    refusal,
)

APART, DIALING, JOINING, MEMBER = Membership
WAITING, TRAINING, DONE, FINISHED = TrainingStage

MOVES = {
    (APART, DIALING),
    (DIALING, DIALING), (DIALING, JOINING), (JOINING, DIALING), (JOINING, MEMBER), (MEMBER, DIALING),
    (WAITING, TRAINING), (WAITING, DONE), (TRAINING, DONE), (DONE, FINISHED),
}  # fmt: skip


@pytest.mark.parametrize(("table", "states"), [(MEMBERSHIPS, Membership), (STAGES, TrainingStage)])
def test_a_state_is_followed_by_those_of_the_table_and_by_no_other(table: Any, states: Any) -> None:
    for old, new in product(states, states):
        if (old, new) in MOVES:
            assert follow(table, old, new, "an event") is new
        else:
            with pytest.raises(AssertionError, match=f"an event took the island from {old} to {new}; only "):
                follow(table, old, new, "an event")


NAME = m.ValueName(0, 1, "d")
S, G = "s1", "g1"
MESSAGES: tuple[SyncerMessage, ...] = (
    m.LayoutWanted(S, "life.1"),
    m.Welcome(S, G, "life.1", "t", "r", m.Contract(), FragmentPlan(((0,),))),
    m.Joined(S, G),
    m.InitWanted(S, G, ("u",)),
    m.Pull(S, G, 1, 0, 1),
    m.PullClosed(S, G, 1, 0),
    m.PushAnswer(S, G, "p", m.Outcome.HELD),
    m.Dropped(S, G, "p", "why"),
    m.Published(S, G, NAME),
    m.Paused(S, G, "why", 1),
    m.PauseOver(S, G),
    m.HeartbeatReply(S, G, 1),
    m.Command(S, G, Order.SAVE),
    m.BudgetReached(S, G, 1),
    m.FinalCut(S, G, (NAME,)),
    m.Stopping(S, G, "why"),
    m.RankWelcome(S, G, 0),
    m.Window(S, G, "u", 0, 0, 1),
    m.Cancel(S, G, "u", "why"),
    m.Piece(S, G, NAME, 0, 0),
    m.Superseded(S, G, NAME, NAME),
)
"""One of each kind but those that are taken in any state, addressed so that the session takes them for its own."""
ALWAYS = {m.Refused, m.Unknown}
FOR_OTHERS = {m.RankWelcome, m.Window, m.Cancel, m.Piece, m.Superseded, AdminReply}
"""Kinds that only bulk links and operators hear."""

ONLY: dict[type[SyncerMessage], set[Membership]] = {
    m.LayoutWanted: {DIALING}, m.Welcome: {DIALING}, m.Joined: {JOINING}, m.InitWanted: {MEMBER}, m.Pull: {MEMBER},
}  # fmt: skip
"""All others are heard once the island was welcomed."""


def test_every_kind_of_message_is_in_the_table_or_for_others() -> None:
    kinds = set(get_args(SyncerMessage))
    assert kinds == {type(message) for message in MESSAGES} | ALWAYS | {AdminReply}
    assert set(HEARD) == kinds - FOR_OTHERS
    assert set(HEARD) == set(Session._HEARD)


@pytest.mark.parametrize("kind", get_args(SyncerMessage))
def test_the_table_says_where_a_message_is_taken(kind: type[SyncerMessage]) -> None:
    for membership, stage in product(Membership, TrainingStage):
        reason = refusal(kind, membership, stage)
        if kind in FOR_OTHERS:
            assert reason == f"{kind.__name__} from the syncer is not taken: the control link carries none"
        elif membership is APART:
            assert reason == f"{kind.__name__} from the syncer is not taken by an island that is apart"
        elif kind not in ALWAYS and membership not in ONLY.get(kind, {JOINING, MEMBER}):
            state = membership.value
            assert reason == f"{kind.__name__} from the syncer is not taken by an island that is {state}"
        elif stage is FINISHED and kind in (m.Pull, m.Published, m.InitWanted):
            assert reason == f"{kind.__name__} from the syncer is not taken by an island that is finished"
        else:
            assert reason == ""


def session_in(membership: Membership) -> Session:
    session = Session(Profile(1, "life"))
    session.handle(events.Started(), now=0.0)
    session.syncer_session, session.generation = S, G
    session.membership = membership
    return session


STEPPING = {WAITING, TRAINING}
HAPPENS: dict[type[events.Event], tuple[set[Membership], set[TrainingStage]]] = {
    events.Started: ({APART}, STEPPING),
    events.Heard: (set(Membership), set(TrainingStage)),
    events.LinkLost: (set(Membership), set(TrainingStage)),
    events.StartEnded: ({DIALING, JOINING, MEMBER}, STEPPING),
    events.StepEnded: ({DIALING, JOINING, MEMBER}, STEPPING),
    events.BoundaryReached: ({DIALING, JOINING, MEMBER}, set(TrainingStage)),
    events.LastStepReached: ({DIALING, JOINING, MEMBER}, STEPPING),
    events.SaveFinished: ({DIALING, JOINING, MEMBER}, set(TrainingStage)),
    events.Left: (set(Membership), set(TrainingStage)),
}
EVENTS: tuple[events.Event, ...] = (
    events.Started(), events.Heard(m.Joined(S, G)), events.LinkLost(), events.StartEnded(),
    events.StepEnded(1, True, 1), events.BoundaryReached(), events.LastStepReached(), events.SaveFinished(),
    events.Left("why"),
)  # fmt: skip


def test_every_kind_of_event_has_its_states() -> None:
    assert set(get_args(events.Event)) == set(HAPPENS) == {type(event) for event in EVENTS}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_that_cannot_happen_in_a_state_is_named_with_it_and_changes_nothing(event: events.Event) -> None:
    memberships, stages = HAPPENS[type(event)]
    for membership, stage in product(Membership, TrainingStage):
        session = Session(Profile(1, "life"))
        session.membership, session.stage = membership, stage
        before = {name: repr(value) for name, value in vars(session).items() if name not in ("holdings", "pushes")}
        if membership in memberships and stage in stages:
            session.handle(event, now=0.0)
            continue
        state = membership.value if membership not in memberships else stage.value
        wrong = f"^{type(event).__name__} cannot happen to an island that is {state}$"
        with pytest.raises(AssertionError, match=wrong):
            session.handle(event, now=0.0)
        assert {name: repr(getattr(session, name)) for name in before} == before


WRONG = [
    (message, state, reason)
    for message, state in product(MESSAGES, Membership)
    if (reason := refusal(type(message), state, WAITING))
]


@pytest.mark.parametrize(("message", "membership", "reason"), WRONG)
def test_a_message_in_a_wrong_state_changes_nothing_and_is_named_with_the_state(
    message: SyncerMessage, membership: Membership, reason: str
) -> None:
    session = session_in(membership)
    parts = ("holdings", "pushes")
    before = {name: repr(value) for name, value in vars(session).items() if name not in parts}
    assert session.handle(events.Heard(message), now=0.0) == [events.Log("warning", reason)]
    after = {name: repr(value) for name, value in vars(session).items() if name in before}
    assert after == before and session.wanted() == ()


@pytest.mark.parametrize("message", [m.Pull(S, G, 1, 0, 1), m.Published(S, G, NAME)])
def test_a_finished_island_answers_no_pull_and_wants_no_value(message: SyncerMessage) -> None:
    session = session_in(MEMBER)
    session.stage = FINISHED
    reason = f"{type(message).__name__} from the syncer is not taken by an island that is finished"
    assert session.handle(events.Heard(message), now=0.0) == [events.Log("warning", reason)]
    assert session.wanted() == () and session.handle(events.BoundaryReached(), now=0.0) == []


def test_a_session_that_leaves_its_table_says_from_where_to_where_and_why() -> None:
    session = session_in(JOINING)
    session.stage = FINISHED
    with pytest.raises(AssertionError, match=r"LastStepReached took .*\.FINISHED to .*\.DONE; only nothing"):
        session._enter(DONE, "LastStepReached")
