"""Who may say what, and the answer to what does not fit."""

from __future__ import annotations

from typing import get_args

import pytest

from swift_diloco.core.formats.messages import (
    CutInstalled,
    Done,
    Heartbeat,
    HeartbeatReply,
    Leave,
    PushOffer,
    Refused,
    Saved,
    Unknown,
)
from syncer.brain.memory.phase import Phase
from syncer.brain.memory.roster import Presence
from syncer.brain.rules.speaking import ONLY_IN, SAYS, MemberMessage
from syncer.events import (
    Received,
    Send,
)
from tests.syncer.desk import SESSION, Desk, control, finished, messages


@pytest.mark.parametrize(
    ("session", "generation", "peer", "reason"),
    [
        ("older", "k1", control(0), "this syncer was started anew; join again"),
        (SESSION, "k9", control(0), "this generation is over; join again"),
        (SESSION, "k1", control(1), "this generation speaks through another connection; join again"),
    ],
)
def test_an_unknown_sender_is_told_why(session: str, generation: str, peer: str, reason: str) -> None:
    desk = Desk()
    desk.join(0)
    effects = desk.take(Received(peer, Heartbeat(session, generation, 1)))
    assert effects == [Send(peer, Unknown(SESSION, generation, reason))]


def test_an_island_that_is_joining_may_send_heartbeats_only() -> None:
    desk = Desk()
    desk.take(Received(control(0), desk.hello(0)))
    assert isinstance(messages(desk.beat(0, 0))[0], HeartbeatReply)
    reason = "Done of island 0 came while it is joining"
    assert messages(desk.done(0)) == [Refused(SESSION, "", reason, retry=True)]


def test_every_presence_and_every_message_of_a_generation_has_its_place_in_the_table() -> None:
    assert set(SAYS) == set(Presence)
    assert SAYS[Presence.TRAINING] == set(get_args(MemberMessage)) == set().union(*SAYS.values())
    assert set(ONLY_IN) < SAYS[Presence.TRAINING]


def in_presence(presence: Presence) -> Desk:
    """A finished run, island 0 of which is so far."""
    desk = finished(2)
    if presence is Presence.SAVED:
        desk.saved(0)
    if presence is Presence.TRAINING:
        desk.join(0, life=2)
    return desk


@pytest.mark.parametrize(
    ("presence", "kind"),
    [
        (presence, kind)
        for presence, said in SAYS.items()
        for kind in (PushOffer, Done, CutInstalled, Saved)
        if presence is not Presence.JOINING and kind not in said
    ],
)
def test_a_message_that_does_not_fit_its_senders_state_is_answered_with_both(
    presence: Presence, kind: type[MemberMessage]
) -> None:
    desk = in_presence(presence)
    assert desk.brain._state.roster.members[0].presence is presence
    if kind is PushOffer:
        effects = desk.take(Received(control(0), desk.offer_of(0, 1)))
    else:
        effects = desk.say(0, kind, **({"step": 9} if kind is Done else {}))
    reason = f"{kind.__name__} of island 0 came while it is {presence.value}"
    assert effects == [Send(control(0), Refused(SESSION, "", reason, retry=True))]


@pytest.mark.parametrize("kind", [CutInstalled, Saved])
def test_what_answers_the_final_cut_is_answered_with_the_phase_before_it_is_out(kind: type[MemberMessage]) -> None:
    desk = Desk()
    desk.ready(1)
    reason = f"{kind.__name__} of island 0 came while the run is training"
    assert desk.say(0, kind) == [Send(control(0), Refused(SESSION, "", reason, retry=True))]
    assert desk.brain._state.phase is Phase.TRAINING


def test_an_offer_before_there_are_values_is_answered_with_the_phase() -> None:
    desk = Desk(expected_islands=2)
    desk.join(0)
    reason = "PushOffer of island 0 came while the run is joining"
    assert desk.take(Received(control(0), desk.offer_of(0, 1))) == [
        Send(control(0), Refused(SESSION, "", reason, retry=True))
    ]


def test_what_does_not_fit_begins_the_lease_anew_like_every_sign_of_life() -> None:
    desk = Desk(island_lease_s=10.0)
    desk.ready(1)
    desk.now = 8.0
    desk.saved(0)
    assert desk.at(17.0) == []


@pytest.mark.parametrize("presence", list(Presence))
def test_a_generation_may_always_beat_and_leave(presence: Presence) -> None:
    assert {Heartbeat, Leave} <= SAYS[presence]
