"""orders.py: all but an abort wait for a boundary, and are obeyed there once and in the sequence in which they came."""

from __future__ import annotations

from swift_diloco.core.formats.messages import Command
from swift_diloco.core.formats.operator_messages import Order
from swift_diloco.island.brain.orders import Orders
from swift_diloco.island.events import Abort, SaveNow, StopTraining


def order(what: Order, reason: str = "") -> Command:
    return Command("s", "g", what, reason)


def test_orders_are_obeyed_at_the_boundary_once_and_in_their_sequence() -> None:
    orders = Orders()
    assert orders.give(order(Order.SAVE, "before the upgrade")) == []
    assert orders.give(order(Order.SAVE_AND_STOP)) == []
    assert orders.obey() == [
        SaveNow("an operator asked for it: before the upgrade"),
        SaveNow("an operator asked for it: no reason given"),
        StopTraining("an operator asked for it", final=False),
    ]
    assert orders.obey() == []


def test_an_abort_waits_for_nothing() -> None:
    orders = Orders()
    assert orders.give(order(Order.ABORT, "wrong data")) == [Abort("an operator aborted the run: wrong data")]
    assert orders.obey() == []
