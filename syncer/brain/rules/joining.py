"""How an island joins and how its generation ends: Hello, RankHello, Leave, closed links and leases.

Knows nothing of rounds: it returns who became a member and whose generation has to end, and its caller acts on it.

A refusal is answered with its reason and changes nothing. An island id has one generation; a second living process is
refused by name, a restart (same run folder, or the old link is closed, or its lease is over) replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass

from swift_diloco.core.errors import DilocoError, PeerError
from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import (
    Contract,
    Hello,
    Joined,
    LayoutWanted,
    RankHello,
    RankWelcome,
    Refused,
    ValueName,
    Welcome,
)
from swift_diloco.core.layout.boxes import RANK_BOXES_MAX, box_fault, tiling_fault
from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.tensors import Layout, check_layout, first_difference
from syncer.brain.memory.roster import ISLANDS_MAX, LEASE, RANKS_MAX, TEXT_MAX, Member
from syncer.brain.memory.state import State
from syncer.events import AdoptLayout, ForgetGeneration, Peer, RegisterRank, Send

RECONNECT = "reconnect"


@dataclass(frozen=True)
class Replaced:
    """A Hello is good; these generations end before it is welcomed."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class Over:
    """A generation has to end, and why."""

    member: Member
    reason: str


class Joining:
    """Decides who takes part."""

    def __init__(self, state: State) -> None:
        self._state = state

    # -- Hello --------------------------------------------------------------------------------------------------------

    def hello(self, peer: Peer, message: Hello) -> Replaced | None:
        """Rank 0 of an island wants to join. None: it was answered already."""
        state = self._state
        again = state.roster.peers.get(peer)
        if again is not None and again.nonce == message.nonce and again.island == message.island:
            self._welcome(again)
            return None
        barred_s = state.barred_until.get(message.island, state.now) - state.now
        if barred_s > 0:
            self._refuse(peer, message, f"an operator keeps it out for {barred_s:.0f} s more", retry=True)
            return None
        reason = self._malformed(message) or self._taken(peer, message)
        unknown = state.layout is None or state.layout.fingerprint != message.fingerprint
        if reason is None and unknown:
            if message.layout is None:
                state.do(Send(peer, LayoutWanted(state.session, message.nonce)))
                return None
            reason = self._foreign(message, message.layout) or self._adopt(message.layout)
        if reason is not None:
            self._refuse(peer, message, reason)
            return None
        present = state.roster.islands.get(message.island)
        return Replaced(tuple(dict.fromkeys(old for old in (again, present) if old is not None)))

    def welcome(self, peer: Peer, message: Hello) -> None:
        """Begin the generation of a good Hello, when all that it replaces has ended."""
        state = self._state
        member = state.roster.welcome(message, peer, (state.tokens(), state.tokens()), state.now)
        state.deadlines.set((LEASE, member.generation), state.now + state.settings.island_lease_s)
        if message.running and state.phase.before_values:
            self._miss_state(member)
        self._welcome(member)

    def _miss_state(self, member: Member) -> None:
        """An island has values of a run that this syncer knows nothing of."""
        self._state.tape(tape_lines.Stateless(island=member.island))
        self._state.log(
            "error",
            f"{member} HAS TRAINED FROM A SYNCER'S VALUES, BUT THIS SYNCER HAS NO STATE: forgot --resume? Stop it and "
            "start it with --resume and the --checkpoint-path of that run; otherwise island 0 is asked for its values "
            "and a new run begins from them",
        )

    def _malformed(self, message: Hello) -> str | None:
        """What is wrong with a Hello whoever sends it."""
        if not 0 <= message.island < ISLANDS_MAX:
            return f"island id {message.island} is not allowed; expected 0 to {ISLANDS_MAX - 1}"
        if not 1 <= message.ranks <= RANKS_MAX:
            return f"island {message.island} announces {message.ranks} owner ranks; expected 1 to {RANKS_MAX}"
        if max(len(text) for text in (message.nonce, message.host, message.instance, message.fingerprint)) > TEXT_MAX:
            return f"a text in Hello is longer than {TEXT_MAX} characters"
        if message.step < 0:
            return f"island {message.island} announces step {message.step}; expected 0 or more"
        return None

    def _taken(self, peer: Peer, message: Hello) -> str | None:
        """Why the island id belongs to somebody else; None for a free id and for a restart."""
        state = self._state
        present = state.roster.islands.get(message.island)
        if present is None or present.peer == peer or not present.linked:
            return None
        if message.instance and message.instance == present.instance:
            return None
        if state.now >= present.heard_at + state.settings.island_lease_s:
            return None
        return (
            f"island {message.island} is here already: host {present.host}, pid {present.pid}; "
            "end that job, or give this one another island id"
        )

    def _foreign(self, message: Hello, layout: Layout) -> str | None:
        """Why the island's model cannot take part; None for a good one."""
        try:
            check_layout(layout)
        except PeerError as error:
            return str(error)
        if layout.fingerprint != message.fingerprint:
            return f"Hello names layout {message.fingerprint} and brings {layout.fingerprint}"
        if self._state.layout is None:
            return None
        difference = first_difference(self._state.layout, layout)
        return f"island {message.island} trains another model: {difference}; all must train the same one"

    def _adopt(self, layout: Layout) -> str | None:
        """The first good layout becomes the run's. Why it cannot, if the settings do not go with it."""
        state = self._state
        try:
            plan = plan_fragments(layout, state.settings.fragments, state.settings.fragmenting)
        except DilocoError as error:
            return str(error)
        state.layout, state.plan = layout, plan
        state.do(AdoptLayout(layout, plan))
        return None

    def _refuse(self, peer: Peer, message: Hello, reason: str, *, retry: bool = False) -> None:
        state = self._state
        state.do(Send(peer, Refused(state.session, message.nonce[:TEXT_MAX], reason, retry)))
        state.tape(tape_lines.Refused(island=message.island, push=None, fragment=None, reason=reason))
        state.log("warning", f"refused island {message.island}: {reason}")

    def _welcome(self, member: Member) -> None:
        state, settings = self._state, self._state.settings
        assert state.plan is not None
        shared = {name: getattr(settings, name) for name in Contract.__struct_fields__}
        if settings.align != "blend":
            shared["alpha"] = 0.0
        welcome = Welcome(
            session=state.session,
            generation=member.generation,
            nonce=member.nonce,
            token=member.token,
            run=state.run,
            contract=Contract(**shared),
            plan=state.plan,
            values=self._values(),
            held=state.held.names(member.island),
            held_floor=state.held.floors(member.island, state.fragments),
            outrun=state.held.outrun(member.island, state.fragments, member.clock.step),
        )
        state.send(member, welcome)

    def _values(self) -> tuple[ValueName, ...]:
        values = self._state.values
        return () if values is None else tuple(values.present)

    # -- RankHello ----------------------------------------------------------------------------------------------------

    def rank_hello(self, peer: Peer, message: RankHello) -> Member | Over | None:
        """An owner rank introduces its link and its boxes. Returns who is a member by it, or can never be one."""
        state = self._state
        member = state.roster.generations.get(message.generation)
        if message.session != state.session or member is None:
            reason = f"generation {message.generation[:TEXT_MAX]} is not known (any more); the island must join again"
            state.do(Send(peer, Refused(state.session, "", reason, retry=True)))
            return None
        if (why := self._rank_fault(peer, member, message)) is not None:
            state.do(Send(peer, Refused(state.session, "", why)))
            state.log("warning", f"refused rank {message.rank} of island {member.island}: {why}")
            return None
        known = member.joined
        state.roster.bind_rank(member, message.rank, peer, message.boxes)
        fault = None
        if not known and len(member.boxes) == member.ranks:
            assert state.layout is not None
            fault = tiling_fault(state.layout, [box for boxes in member.boxes.values() for box in boxes])
        if fault is not None:
            return self._refuse_tiling(member, fault)
        state.do(RegisterRank(member.generation, member.island, message.rank, peer, message.boxes))
        state.do(Send(peer, RankWelcome(state.session, member.generation, message.rank, self._values())))
        return self._admit(member) if not known and len(member.boxes) == member.ranks else None

    def _rank_fault(self, peer: Peer, member: Member, message: RankHello) -> str | None:
        """What is wrong with a RankHello of a known generation."""
        assert self._state.layout is not None
        if message.token != member.token:
            return f"the join token is not that of generation {member.generation}"
        if peer in self._state.roster.peers:
            return "a control link cannot be a bulk link"
        if not 0 <= message.rank < RANKS_MAX:
            return f"rank {message.rank} is not allowed; expected 0 to {RANKS_MAX - 1}"
        before = member.boxes.get(message.rank)
        if before is None and len(member.boxes) == member.ranks:
            return f"island {member.island} announced {member.ranks} owner ranks; rank {message.rank} is one more"
        if member.joined and before != message.boxes:
            return f"rank {message.rank} came back with other boxes than it had; the island must join again"
        if len(message.boxes) > RANK_BOXES_MAX:
            return f"rank {message.rank} announces {len(message.boxes)} boxes; at most {RANK_BOXES_MAX} are allowed"
        return None if member.joined else first_box_fault(self._state, message)

    def _refuse_tiling(self, member: Member, fault: str) -> Over:
        state = self._state
        reason = f"the pieces of island {member.island}'s ranks do not make up the model: {fault}"
        state.send(member, Refused(state.session, member.nonce, reason))
        state.tape(tape_lines.Refused(island=member.island, push=None, fragment=None, reason=reason))
        return Over(member, reason)

    def _admit(self, member: Member) -> Member:
        """Every owner rank is there and together they hold the model once."""
        state = self._state
        state.roster.admit(member, state.fragments)
        state.send(member, Joined(state.session, member.generation))
        state.tape(
            tape_lines.Joined(island=member.island, generation=member.generation, step=member.clock.step, reason="")
        )
        state.log("info", f"{member} joined with {member.ranks} ranks; {len(state.roster.members)} members")
        return member

    # -- The end of a generation --------------------------------------------------------------------------------------

    def end(self, member: Member, reason: str) -> bool:
        """A generation is over, for whatever reason. Whether it was a member."""
        state = self._state
        state.roster.end(member)
        state.deadlines.clear((LEASE, member.generation))
        state.deadlines.clear((RECONNECT, member.generation))
        state.do(ForgetGeneration(member.generation, reason))
        if member.joined:
            state.tape(tape_lines.Left(island=member.island, generation=member.generation, reason=reason))
            state.log("info", f"{member} left: {reason}; {len(state.roster.members)} members")
        return member.joined

    def peer_gone(self, peer: Peer) -> Over | None:
        """A connection is closed. A member has a moment to come back before the rounds go on without it."""
        state = self._state
        state.roster.unbind_rank(peer)
        member = state.roster.peers.get(peer)
        if member is None or not member.linked:
            return None
        member.linked = False
        if not member.joined:
            return Over(member, "its control link closed before it had joined")
        state.deadlines.set((RECONNECT, member.generation), state.now + state.settings.reconnect_grace_s)
        return None

    def time_out(self, kind: str, generation: str) -> Over | None:
        """A lease or the time to reconnect is over."""
        member = self._state.roster.generations.get(generation)
        if member is None:
            return None
        silent = f"nothing was heard for {self._state.settings.island_lease_s:g} s"
        return Over(member, silent if kind == LEASE else "its control link closed")


def first_box_fault(state: State, message: RankHello) -> str | None:
    """The first box of a rank that does not lie in the layout, in words."""
    assert state.layout is not None
    return next((fault for box in message.boxes if (fault := box_fault(state.layout, box))), None)
