"""Joining: who is taken, who is refused and why, and how a generation ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import (
    Heartbeat,
    HeartbeatReply,
    InitWanted,
    Joined,
    LayoutWanted,
    Leave,
    Pull,
    PushOffer,
    RankHello,
    RankWelcome,
    Refused,
    Unknown,
    Welcome,
)
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from syncer.brain.memory.roster import ISLANDS_MAX, RANKS_MAX, TEXT_MAX
from syncer.events import (
    AdoptLayout,
    ForgetGeneration,
    PeerGone,
    Received,
    RegisterRank,
    Send,
    TimePassed,
    WriteTape,
)
from tests.syncer.desk import SESSION, Desk, bulk, control, initial_names, messages, small_layout, without_talk


def refusal(desk: Desk, hello: Any, peer: str = "control-9-1") -> str:
    """The reason of a refused Hello; asserts that nothing else happens."""
    effects = desk.take(Received(peer, hello))
    assert len(effects) == 2, effects
    sent, line = effects
    assert isinstance(sent, Send) and isinstance(sent.message, Refused) and sent.message.nonce == hello.nonce[:TEXT_MAX]
    assert line == WriteTape(
        tape_lines.Refused(island=hello.island, push=None, fragment=None, reason=sent.message.reason)
    )
    return sent.message.reason


def test_a_hello_with_an_unknown_fingerprint_is_asked_for_its_layout() -> None:
    desk = Desk()
    hello = desk.hello(0, layout=None)
    assert desk.take(Received(control(0), hello)) == [Send(control(0), LayoutWanted(SESSION, hello.nonce))]
    effects = desk.take(Received(control(0), desk.hello(0)))
    assert isinstance(effects[0], AdoptLayout) and isinstance(messages(effects)[0], Welcome)
    effects = desk.take(Received(control(1), desk.hello(1, layout=None)))
    assert [type(m) for m in messages(effects)] == [Welcome]


def test_another_model_is_refused_with_its_first_different_tensor() -> None:
    desk = Desk()
    desk.join(0)
    other = make_layout([TensorSpec("w.0", (4,), "avg"), TensorSpec("w.1", (5,), "avg")])
    hello = desk.hello(1, layout=other, fingerprint=other.fingerprint)
    assert refusal(desk, hello) == (
        "island 1 trains another model: tensor 'w.1': expected shape [4], found [5]; all must train the same one"
    )


def test_a_layout_without_the_fingerprint_it_claims_is_refused() -> None:
    desk = Desk()
    forged = msgspec.structs.replace(desk.layout, fingerprint="ff")
    assert "does not have it" in refusal(desk, desk.hello(0, layout=forged, fingerprint="ff"))
    assert "brings" in refusal(desk, desk.hello(0, fingerprint="ee"))


def test_more_fragments_than_tensors_is_told_to_the_island() -> None:
    desk = Desk(fragments=3)
    layout = small_layout(2)
    hello = desk.hello(0, layout=layout, fingerprint=layout.fingerprint)
    assert refusal(desk, hello) == "fragments is 3, but the model has only 2 tensors; use at most 2"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"island": -1}, "island id -1"),
        ({"island": ISLANDS_MAX}, f"island id {ISLANDS_MAX}"),
        ({"ranks": 0}, "0 owner ranks"),
        ({"ranks": RANKS_MAX + 1}, "owner ranks"),
        ({"step": -1}, "step -1"),
        ({"host": "h" * 300}, "longer than 256"),
        ({"nonce": "n" * 300}, "longer than 256"),
    ],
)
def test_a_malformed_hello_is_refused(changes: dict[str, Any], words: str) -> None:
    desk = Desk()
    assert words in refusal(desk, msgspec.structs.replace(desk.hello(0), **changes))


def test_a_second_living_island_is_refused_with_host_and_pid_of_the_first() -> None:
    desk = Desk()
    desk.join(0)
    assert refusal(desk, desk.hello(0, instance="other")) == (
        "island 0 is here already: host host-0, pid 100; end that job, or give this one another island id"
    )
    assert refusal(desk, desk.hello(0, instance="")).startswith("island 0 is here already")


@pytest.mark.parametrize("why", ["same instance", "link closed", "lease over"])
def test_a_restart_replaces_its_former_generation(why: str) -> None:
    desk = Desk(island_lease_s=60.0)
    desk.join(0)
    instance = "instance-0" if why == "same instance" else "other"
    if why == "link closed":
        desk.gone(0)
    if why == "lease over":
        desk.now = 60.0
    effects = desk.take(Received(control(0, 2), desk.hello(0, instance=instance)))
    assert effects[0] == ForgetGeneration("k1", "it joins again")
    assert effects[1] == WriteTape(tape_lines.Left(island=0, generation="k1", reason="it joins again"))
    assert isinstance(messages(effects)[-1], Welcome) and desk.generation[0] not in ("", "k1")
    assert desk.brain.status().joining == (0,)


def test_a_repeated_hello_is_answered_with_the_same_welcome() -> None:
    desk = Desk()
    hello = desk.hello(0)
    first = messages(desk.take(Received(control(0), hello)))
    assert messages(desk.take(Received(control(0), hello))) == first


def test_a_redial_on_the_same_connection_makes_a_new_generation() -> None:
    desk = Desk()
    desk.join(0)
    effects = desk.take(Received(control(0), desk.hello(0, instance="")))
    assert effects[0] == ForgetGeneration("k1", "it joins again")
    assert [type(m) for m in messages(effects)] == [Welcome]


def test_an_island_is_a_member_when_its_boxes_tile_the_model() -> None:
    desk = Desk()
    desk.take(Received(control(0), desk.hello(0, ranks=2)))
    halves = [tuple(Box(i, (start,), (2,)) for i in range(2)) for start in (0, 2)]
    for rank in (0, 1):
        hello = RankHello(SESSION, "k1", "k2", rank, halves[rank])
        effects = desk.take(Received(f"bulk-{rank}", hello))
        assert effects[:2] == [
            RegisterRank("k1", 0, rank, f"bulk-{rank}", halves[rank]),
            Send(f"bulk-{rank}", RankWelcome(SESSION, "k1", rank)),
        ]
    assert messages(effects)[1:] == [
        Joined(SESSION, "k1"),
        InitWanted(SESSION, "k1", ("k1.init-1-0", "k1.init-1-1")),
    ]


@pytest.mark.parametrize(
    ("box", "fault"),
    [
        (Box(1, (0,), (3,)), "tensor 'w.1': nobody owns [3:4]"),
        (Box(0, (0,), (4,)), "tensor 'w.0': box [0:4] overlaps another one"),
    ],
)
def test_boxes_that_do_not_tile_the_model_are_refused_with_the_first_fault(box: Box, fault: str) -> None:
    desk = Desk()
    desk.take(Received(control(0), desk.hello(0)))
    boxes = (Box(0, (0,), (4,)), box)
    reason = f"the pieces of island 0's ranks do not make up the model: {fault}"
    assert desk.take(Received(bulk(0), RankHello(SESSION, "k1", "k2", 0, boxes))) == [
        Send(control(0), Refused(SESSION, "nonce-1", reason)),
        WriteTape(tape_lines.Refused(island=0, push=None, fragment=None, reason=reason)),
        ForgetGeneration("k1", reason),
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token": "guess"}, "join token"),
        ({"rank": -1}, "rank -1"),
        ({"boxes": (Box(2, (0,), (4,)),)}, "tensor number 2"),
        ({"boxes": (Box(0, (0,), (5,)),)}, "not inside shape [4]"),
        ({"boxes": (Box(0, (0, 0), (4, 1)),)}, "not inside shape [4]"),
        ({"boxes": (Box(0, (-1,), (2,)),)}, "not inside shape [4]"),
    ],
)
def test_a_bad_rank_hello_is_refused_and_changes_nothing(changes: dict[str, Any], words: str) -> None:
    desk = Desk()
    desk.take(Received(control(0), desk.hello(0)))
    hello = msgspec.structs.replace(RankHello(SESSION, "k1", "k2", 0, desk.boxes()), **changes)
    effects = desk.take(Received(bulk(0), hello))
    assert len(effects) == 1 and isinstance(effects[0], Send) and effects[0].peer == bulk(0)
    assert isinstance(effects[0].message, Refused) and words in effects[0].message.reason
    assert desk.brain.status().joining == (0,)


def test_a_rank_of_an_unknown_generation_is_told_to_join_again() -> None:
    desk = Desk()
    reason = "generation gone is not known (any more); the island must join again"
    assert desk.take(Received(bulk(0), RankHello(SESSION, "gone", "", 0, ()))) == [
        Send(bulk(0), Refused(SESSION, "", reason, retry=True))
    ]


def test_one_rank_too_many_or_with_new_boxes_is_refused() -> None:
    desk = Desk()
    desk.join(0)
    extra = desk.take(Received(bulk(1), RankHello(SESSION, "k1", "k2", 1, ())))
    assert "rank 1 is one more" in messages(extra)[0].reason  # type: ignore[union-attr]
    moved = desk.take(Received(bulk(1), RankHello(SESSION, "k1", "k2", 0, desk.boxes()[:1])))
    assert "other boxes" in messages(moved)[0].reason  # type: ignore[union-attr]


def test_a_rank_may_dial_again_under_its_generation() -> None:
    desk = Desk()
    desk.ready(1)
    assert desk.take(PeerGone(bulk(0))) == []
    hello = RankHello(SESSION, "k1", "k2", 0, desk.boxes())
    assert desk.take(Received("bulk-again", hello)) == [
        RegisterRank("k1", 0, 0, "bulk-again", desk.boxes()),
        Send("bulk-again", RankWelcome(SESSION, "k1", 0, initial_names(2))),
    ]


def test_a_heartbeat_is_answered_with_members_and_what_is_waited_for() -> None:
    desk = Desk()
    desk.ready(2)
    waiting = "islands 0, 1 to answer outer step 1 (fragment 0)"
    assert desk.beat(0, 1) == [Send(control(0), HeartbeatReply(SESSION, "k1", 2, waiting))]


def test_a_lease_runs_out_without_a_sign_of_life() -> None:
    desk = Desk(island_lease_s=60.0)
    desk.ready(2)
    desk.now = 30.0
    desk.beat(1, 1)
    assert desk.at(59.0) == []
    assert desk.at(60.0) == [
        ForgetGeneration("k1", "nothing was heard for 60 s"),
        WriteTape(tape_lines.Left(island=0, generation="k1", reason="nothing was heard for 60 s")),
    ]
    assert isinstance(messages(desk.beat(0, 2))[0], Unknown)
    assert desk.brain.next_wakeup == 90.0


def test_a_dead_process_leaves_after_the_reconnect_grace() -> None:
    desk = Desk(reconnect_grace_s=5.0)
    desk.ready(2)
    assert desk.gone(1) == []
    assert desk.at(4.9) == []
    assert desk.at(5.0)[0] == ForgetGeneration("k3", "its control link closed")


def test_what_a_closed_link_had_sent_before_is_still_taken() -> None:
    desk = Desk()
    desk.ready(2)
    desk.gone(1)
    assert desk.say(1, Leave, reason="bye")[:2] == [
        ForgetGeneration("k3", "it left: bye"),
        WriteTape(tape_lines.Left(island=1, generation="k3", reason="it left: bye")),
    ]


def test_an_island_whose_link_closes_before_it_joined_is_forgotten_at_once() -> None:
    desk = Desk()
    desk.take(Received(control(0), desk.hello(0)))
    assert desk.gone(0) == [ForgetGeneration("k1", "its control link closed before it had joined")]


def test_an_island_that_was_away_is_pulled_again() -> None:
    desk = Desk()
    desk.ready(2)
    desk.gone(1)
    effects = desk.join(1, life=2)
    pulls = [m for m in messages(effects) if isinstance(m, Pull)]
    assert [(p.t, p.fragment, p.generation) for p in pulls] == [(1, 0, "k6"), (2, 1, "k6")]
    assert not [m for m in messages(effects) if isinstance(m, PushOffer)]


def test_a_stall_of_the_syncer_makes_nobody_silent_whose_heartbeats_lie_in_the_socket() -> None:
    desk = Desk(min_islands=2, island_lease_s=120.0)
    desk.ready(3)
    late = desk.offer(2, 1)
    for island in range(3):  # read one after the other, all after the lease
        said = Heartbeat(SESSION, desk.generation[island], 5)
        (reply,) = messages(desk.brain.handle(Received(control(island), said), now=200.0))
        assert isinstance(reply, HeartbeatReply)
    assert without_talk(desk.brain.handle(TimePassed(), now=200.0)) == []
    assert sorted(member.island for member in desk.brain.status().members) == [0, 1, 2]
    assert late in desk.brain._state.uploads
    over = [effect for effect in desk.brain.handle(TimePassed(), now=320.0) if isinstance(effect, ForgetGeneration)]
    assert [effect.reason for effect in over] == ["nothing was heard for 120 s"] * 3
