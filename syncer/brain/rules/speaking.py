"""Who may say what: the generation behind a message, and whether what it says fits its state and the run's.

A message that fits begins its sender's lease anew. What does not fit is answered: a sender that is not known joins
again, one that speaks out of turn is told which message came in which state.
"""

from __future__ import annotations

from swift_diloco.core.formats.messages import CutInstalled, Done, Heartbeat, Leave, PushOffer, Refused, Saved, Unknown
from syncer.brain.memory.phase import Phase
from syncer.brain.memory.roster import LEASE, TEXT_MAX, Member, Presence
from syncer.brain.memory.state import State
from syncer.events import Peer, Send

MemberMessage = Heartbeat | PushOffer | Done | CutInstalled | Saved | Leave

_ALWAYS = frozenset({Heartbeat, Leave})
SAYS: dict[Presence, frozenset[type]] = {
    Presence.JOINING: _ALWAYS,
    Presence.TRAINING: _ALWAYS | {PushOffer, Done, CutInstalled, Saved},
    Presence.DONE: _ALWAYS | {PushOffer, CutInstalled, Saved},
    Presence.SAVED: _ALWAYS,
}
"""What a generation may say while it is how far."""

ONLY_IN: dict[type, frozenset[Phase]] = {
    CutInstalled: frozenset({Phase.FINAL}),
    Saved: frozenset({Phase.FINAL}),
    PushOffer: frozenset({Phase.TRAINING, Phase.PAUSED, Phase.FINISHING, Phase.FINAL, Phase.STOPPING}),
}
"""Messages that answer what the run says in these phases only."""


class Speaking:
    """Listens to generations."""

    def __init__(self, state: State) -> None:
        self._state = state

    def listen(self, peer: Peer, message: MemberMessage) -> Member | None:
        """The generation that speaks, its lease begun anew. None: what it said does not fit, and was answered."""
        state = self._state
        reason = self._unknown(peer, message)
        if reason is not None:
            state.do(Send(peer, Unknown(state.session, message.generation[:TEXT_MAX], reason)))
            return None
        member = state.roster.generations[message.generation]
        member.heard_at = state.now
        state.deadlines.set((LEASE, member.generation), state.now + state.settings.island_lease_s)
        fault = self._out_of_turn(member, message)
        if fault is None:
            return member
        state.log("warning", f"{fault}; it was told")
        state.send(member, Refused(state.session, "", fault, retry=True))
        return None

    def _unknown(self, peer: Peer, message: MemberMessage) -> str | None:
        """Why a sender is not known; None for one that is."""
        if message.session != self._state.session:
            return "this syncer was started anew; join again"
        member = self._state.roster.generations.get(message.generation)
        if member is None:
            return "this generation is over; join again"
        if member.peer != peer:
            return "this generation speaks through another connection; join again"
        return None

    def _out_of_turn(self, member: Member, message: MemberMessage) -> str | None:
        """Why a message does not fit, naming it and the state that it came in; None for one that fits."""
        said, phase = type(message), self._state.phase
        if said not in SAYS[member.presence]:
            return f"{said.__name__} of island {member.island} came while it is {member.presence.value}"
        if phase in ONLY_IN.get(said, (phase,)):
            return None
        return f"{said.__name__} of island {member.island} came while the run is {phase.value}"
