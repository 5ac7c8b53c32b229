"""Who may say what: the generation behind a message, and whether what it says fits its state and the run's.

Changes nothing. What does not fit is answered: a sender that is not known joins again, one that speaks out of turn is
told which message came in which state.
"""

from __future__ import annotations

from swift_diloco.core.formats.messages import CutInstalled, Done, Heartbeat, Leave, PushOffer, Saved
from syncer.brain.memory.phase import Phase
from syncer.brain.memory.roster import Member, Presence
from syncer.brain.memory.state import State
from syncer.events import Peer

MemberMessage = Heartbeat | PushOffer | Done | CutInstalled | Saved | Leave

_ALWAYS = frozenset({Heartbeat, Leave})
SAYS: dict[Presence, frozenset[type]] = {
    Presence.JOINING: _ALWAYS,
    Presence.TRAINING: _ALWAYS | {PushOffer, Done, CutInstalled, Saved},
    Presence.DONE: _ALWAYS | {PushOffer, CutInstalled, Saved},
    Presence.SAVED: _ALWAYS,
}
"""What a generation may say while it is how far."""

ONLY_IN: dict[type, frozenset[Phase]] = {CutInstalled: frozenset({Phase.FINAL}), Saved: frozenset({Phase.FINAL})}
"""Messages that answer something the run says in these phases only."""


def speaker(state: State, peer: Peer, message: MemberMessage) -> Member | str:
    """The generation that speaks, or why it is not known."""
    if message.session != state.session:
        return "this syncer was started anew; join again"
    member = state.roster.generations.get(message.generation)
    if member is None:
        return "this generation is over; join again"
    if member.peer != peer:
        return "this generation speaks through another connection; join again"
    if not member.joined and type(message) not in SAYS[Presence.JOINING]:
        return "not all ranks have joined"
    return member


def out_of_turn(state: State, member: Member, message: MemberMessage) -> str | None:
    """Why a message does not fit, naming it and the state that it came in; None for one that fits."""
    said = type(message)
    if said not in SAYS[member.presence]:
        return f"{said.__name__} of island {member.island} came while it is {member.presence.value}"
    phases = ONLY_IN.get(said)
    if phases is not None and state.phase not in phases:
        expected = " or ".join(sorted(phase.value for phase in phases))
        return (
            f"{said.__name__} of island {member.island} came while the run is {state.phase.value}; expected {expected}"
        )
    return None
