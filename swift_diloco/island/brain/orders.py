"""What an operator has ordered of this island, to be obeyed at the next boundary. Pure."""

from __future__ import annotations

from swift_diloco.core.formats.messages import Command
from swift_diloco.core.formats.operator_messages import Order
from swift_diloco.island.events import Abort, Effect, SaveNow, StopTraining


class Orders:
    """Orders in the sequence in which they came."""

    def __init__(self) -> None:
        self._given: list[Command] = []

    def give(self, command: Command) -> list[Effect]:
        """An order came. Only an abort does not wait for a boundary."""
        if command.order is Order.ABORT:
            return [Abort(f"an operator aborted the run: {command.reason or 'no reason given'}")]
        self._given.append(command)
        return []

    def obey(self) -> list[Effect]:
        """What was ordered since the last boundary."""
        effects: list[Effect] = []
        for order in self._given:
            effects.append(SaveNow(f"an operator asked for it: {order.reason or 'no reason given'}"))
            if order.order is Order.SAVE_AND_STOP:
                effects.append(StopTraining("an operator asked for it", final=False))
        self._given.clear()
        return effects
