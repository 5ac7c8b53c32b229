"""An operator's orders: relayed to islands, or about the syncer itself.

Whoever asks has been found to be an operator already (`links.refusals`). An order is done when this module returns, or
refused with the reason; what else has to follow from it is returned, and the caller acts on it.

Invariant: settings change only by name, within the bounds that hold at the start, and are remembered in
`State.overrides`, so that a restarted syncer has them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from swift_diloco.core.errors import UserError
from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import Command, Unknown
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminReply, AdminRequest, Order
from swift_diloco.core.settings.schema import read_value, refuse_unknown
from syncer.brain.memory.overrides import CHANGEABLE, apply_overrides
from syncer.brain.memory.roster import TEXT_MAX, Member
from syncer.brain.memory.state import State
from syncer.brain.rules.joining import Over
from syncer.events import Peer, Send

KICKED_S = 60.0
"""How long an island that was kicked is not taken again: long enough for an operator to end its job."""

CHANGES_MAX = 16
"""Most changes in one order."""

ORDERS = {
    AdminCommand.SAVE: Order.SAVE,
    AdminCommand.SAVE_AND_STOP: Order.SAVE_AND_STOP,
    AdminCommand.ABORT: Order.ABORT,
}


class Refusal(Exception):
    """An order that is not followed, and why."""


class Then(Enum):
    """What follows from an order, beside what was done."""

    NOTHING = "nothing"
    DECIDE = "decide"
    """Settings changed: parked and open rounds are decided about at once."""
    STOP = "stop"
    """The graceful stop begins."""


@dataclass(frozen=True)
class Followed:
    """An order was followed: what was done, in words, and what follows: something, or that a member has to go."""

    text: str
    then: Then | Over = Then.NOTHING


class Orders:
    """Follows orders."""

    def __init__(self, state: State) -> None:
        self._state = state

    def handle(self, peer: Peer, request: AdminRequest) -> Then | Over:
        """Follow an order and answer it."""
        state = self._state
        try:
            followed, done = True, self._follow(request)
        except (Refusal, UserError) as error:
            followed, done = False, Followed(str(error))
        what, reason = request.command.value, request.reason[:TEXT_MAX]
        state.tape(tape_lines.Admin(command=what, island=request.island, done=followed, text=done.text, reason=reason))
        state.log("warning", f"an operator says {what}{f' ({reason})' if reason else ''}: {done.text}")
        state.do(Send(peer, AdminReply(state.session, request.nonce[:TEXT_MAX], followed, done.text)))
        return done.then

    def _follow(self, request: AdminRequest) -> Followed:
        """Do it."""
        command = request.command
        if command in ORDERS:
            return self._relay(ORDERS[command], request)
        if command is AdminCommand.SET:
            return self._set(request.changes)
        if command is AdminCommand.KICK:
            return self._kick(request)
        if command is AdminCommand.CHECKPOINT:
            return self._checkpoint()
        if command is AdminCommand.STOP:
            return Followed("the syncer stops: open rounds get their time", Then.STOP)
        raise Refusal(f"{command.value} is not the coordinator's to answer")

    def _relay(self, order: Order, request: AdminRequest) -> Followed:
        """Send an order to one or all islands."""
        state = self._state
        members = [self._member(request.island)] if request.island is not None else state.roster.ordered()
        reached = [member for member in members if member.linked]
        if not reached:
            raise Refusal("no island is connected that could obey")
        for member in reached:
            reason = request.reason[:TEXT_MAX] or "by an operator's order"
            state.send(member, Command(state.session, member.generation, order, reason))
        missed = [member.island for member in members if not member.linked]
        text = f"{order.value} was sent to {_islands([member.island for member in reached])}"
        return Followed(text + (f"; not to {_islands(missed)}, whose link is down" if missed else ""))

    def _set(self, changes: tuple[tuple[str, str], ...]) -> Followed:
        if not 0 < len(changes) <= CHANGES_MAX:
            raise Refusal(f"{len(changes)} changes; expected 1 to {CHANGES_MAX}, such as min_islands=2")
        wanted: dict[str, int] = {}
        names = (name[:TEXT_MAX] for name, _ in changes)
        refuse_unknown(names, CHANGEABLE, where="what can be set while running")
        for name, raw in changes:
            value = read_value(CHANGEABLE[name], raw[:TEXT_MAX], spelling=name)
            assert isinstance(value, int)
            wanted[name] = value
        before = {name: getattr(self._state.settings, name) for name in wanted}
        apply_overrides(self._state, wanted)
        self._state.checkpoint_wanted = bool(self._state.settings.checkpoint_path)  # It outlives a crash.
        text = ", ".join(f"{name} is {value} (was {before[name]})" for name, value in wanted.items())
        return Followed(text, Then.DECIDE)

    def _kick(self, request: AdminRequest) -> Followed:
        state = self._state
        if request.island is None:
            raise Refusal("which island? give --island N")
        member = self._member(request.island)
        state.barred_until[member.island] = state.now + KICKED_S
        reason = f"an operator ended its membership{f': {request.reason[:TEXT_MAX]}' if request.reason else ''}"
        state.send(member, Unknown(state.session, member.generation, reason))
        text = f"{member} is no member any more and is not taken again for {KICKED_S:g} s"
        return Followed(text, Over(member, reason))

    def _checkpoint(self) -> Followed:
        state = self._state
        if not state.settings.checkpoint_path:
            raise Refusal("the syncer was started without --checkpoint-path")
        if state.phase.before_values:
            raise Refusal("there are no values yet")
        state.checkpoint_wanted = True
        return Followed("a checkpoint is being written")

    def _member(self, island: int) -> Member:
        member = self._state.roster.members.get(island)
        if member is None:
            here = sorted(self._state.roster.members)
            raise Refusal(f"island {island} is no member; members are {_islands(here) if here else 'none'}")
        return member


def _islands(ids: list[int]) -> str:
    return f"island{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"
