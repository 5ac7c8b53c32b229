"""An operator's orders, as the coordinator follows or refuses them."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import Command, Joined, Paused, PauseOver, Refused, Unknown
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminReply, Order
from syncer.brain.rules.orders import KICKED_S
from syncer.events import Exit, Merge, Received, Send
from tests.syncer.desk import OPERATOR, SESSION, Desk, control, order


def reply(done: bool, text: str) -> Send:
    return Send(OPERATOR, AdminReply(SESSION, "n", done, text))


@pytest.mark.parametrize(
    ("command", "relayed"),
    [
        (AdminCommand.SAVE, Order.SAVE),
        (AdminCommand.SAVE_AND_STOP, Order.SAVE_AND_STOP),
        (AdminCommand.ABORT, Order.ABORT),
    ],
)
def test_orders_reach_every_island(command: AdminCommand, relayed: Order) -> None:
    desk = Desk()
    desk.ready(2)
    assert order(desk, command, reason="maintenance") == [
        Send(control(0), Command(SESSION, "k1", relayed, "maintenance")),
        Send(control(1), Command(SESSION, "k3", relayed, "maintenance")),
        reply(True, f"{relayed.value} was sent to islands 0, 1"),
    ]
    assert desk.tape(tape_lines.Admin)[-1] == tape_lines.Admin(
        command=command.value,
        island=None,
        done=True,
        text=f"{relayed.value} was sent to islands 0, 1",
        reason="maintenance",
    )


def test_an_order_may_be_for_one_island_which_must_be_a_member() -> None:
    desk = Desk()
    desk.ready(2)
    assert order(desk, AdminCommand.SAVE, island=1) == [
        Send(control(1), Command(SESSION, "k3", Order.SAVE, "by an operator's order")),
        reply(True, "save was sent to island 1"),
    ]
    assert order(desk, AdminCommand.SAVE, island=7) == [reply(False, "island 7 is no member; members are islands 0, 1")]


def test_an_island_whose_link_is_down_is_named() -> None:
    desk = Desk()
    desk.ready(2)
    desk.gone(1)
    assert order(desk, AdminCommand.SAVE)[-1] == reply(
        True, "save was sent to island 0; not to island 1, whose link is down"
    )
    desk.gone(0)
    assert order(desk, AdminCommand.ABORT) == [reply(False, "no island is connected that could obey")]


def test_lowering_min_islands_ends_a_pause_at_once() -> None:
    desk = Desk(expected_islands=2, min_islands=2, reconnect_grace_s=0.0)
    desk.ready(2)
    desk.leave(1)
    assert desk.sent(0, Paused)[-1].missing == 1
    effects = order(desk, AdminCommand.SET, changes=(("min_islands", "1"),))
    assert effects[:2] == [reply(True, "min_islands is 1 (was 2)"), Send(control(0), PauseOver(SESSION, "k1"))]


def test_raising_min_islands_pauses_at_once_and_raising_it_more_tells_how_many_are_missing() -> None:
    desk = Desk()
    desk.ready(1)
    for least, missing in (("2", 1), ("3", 2)):
        order(desk, AdminCommand.SET, changes=(("min_islands", least),))
        assert desk.sent(0, Paused)[-1].missing == missing


def test_lowering_the_quorum_closes_a_round_that_waited_for_it() -> None:
    desk = Desk(quorum=2)
    desk.ready(2)
    desk.push(0, 1)
    assert desk.merges() == []
    effects = order(desk, AdminCommand.SET, changes=(("quorum", "1"),))
    assert [effect.t for effect in effects if isinstance(effect, Merge)] == [1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ((), "0 changes; expected 1 to 16, such as min_islands=2"),
        ((("quorm", "1"),), "unknown setting quorm in what can be set while running; the nearest valid name is quorum"),
        ((("min_islands", "0"),), "min_islands is '0'; expected a whole number from 1 to 1024 (default 1)"),
        ((("quorum", "1"), ("min_islands", "x")), "min_islands is 'x'; expected a whole number from 1 to 1024"),
    ],
)
def test_a_bad_change_is_refused_and_changes_nothing(changes: tuple[tuple[str, str], ...], reason: str) -> None:
    desk = Desk(quorum=2, min_islands=2)
    (answer,) = order(desk, AdminCommand.SET, changes=changes)
    assert isinstance(answer, Send) and isinstance(answer.message, AdminReply)
    assert not answer.message.done and answer.message.text.startswith(reason)
    assert desk.brain._state.settings == desk.settings and desk.brain._state.overrides == {}


def test_a_kicked_island_is_told_and_kept_out_for_a_while() -> None:
    desk = Desk()
    desk.ready(2)
    effects = order(desk, AdminCommand.KICK, island=1, reason="bad node")
    assert effects[0] == Send(control(1), Unknown(SESSION, "k3", "an operator ended its membership: bad node"))
    assert reply(True, "island 1 (host-1, pid 101) is no member any more and is not taken again for 60 s") in effects
    desk.take(Received(control(1, 2), desk.hello(1)))
    assert desk.effects[-2 if not isinstance(desk.effects[-1], Send) else -1]
    refused = desk.sent(1, Refused)[-1]
    assert refused.retry and refused.reason == "an operator keeps it out for 60 s more"
    desk.at(KICKED_S)
    desk.join(1, life=3)
    assert len(desk.sent(1, Joined)) == 2


def test_kick_needs_an_island() -> None:
    desk = Desk()
    assert order(desk, AdminCommand.KICK) == [reply(False, "which island? give --island N")]
    assert order(desk, AdminCommand.KICK, island=0) == [reply(False, "island 0 is no member; members are none")]


def test_stop_is_answered_before_the_syncer_ends() -> None:
    desk = Desk()
    effects = order(desk, AdminCommand.STOP)
    assert effects[0] == reply(True, "the syncer stops: open rounds get their time")
    assert effects[-1] == Exit(0, "told to stop before training began")


def test_a_checkpoint_needs_a_place() -> None:
    desk = Desk()
    assert order(desk, AdminCommand.CHECKPOINT) == [reply(False, "the syncer was started without --checkpoint-path")]
