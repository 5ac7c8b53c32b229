"""Who takes part: the present generation of every island, its links, its ranks and its local step.

Knows neither rounds nor values. A *generation* is one joining of an island; it begins at Welcome, is a member once its
owner ranks' boxes tile the layout, and ends once and for all. The roster is changed only through its methods.

Invariants: at most one generation per island; a connection speaks for at most one generation; `done` counts the members
that are done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from swift_diloco.core.formats.messages import Hello
from swift_diloco.core.layout.boxes import Box
from syncer.brain.memory.step_clock import StepClock
from syncer.events import Peer

ISLANDS_MAX = 1024
"""Most islands at once, and one more than the highest island id: what the settings allow."""

RANKS_MAX = 65_536
"""Most owner ranks of one island; an island of more would need more file descriptors than a process may have."""

LEASE = "lease"
"""Kind of the deadline at which membership without a sign of life is over."""

TEXT_MAX = 256
"""Longest host name, nonce, instance token or push id (characters)."""


class Presence(Enum):
    """How far a generation is."""

    JOINING = "joining"
    """Welcomed; not all owner ranks have said RankHello."""
    TRAINING = "training"
    """A member."""
    DONE = "done"
    """A member at its last step: it waits for the final cut."""
    SAVED = "saved"
    """Its last save is durable; it needs nothing more."""


FOLLOWS = {
    Presence.JOINING: frozenset({Presence.TRAINING}),
    # An island that comes back to a finished run has nothing to be done with: it takes the cut and saves.
    Presence.TRAINING: frozenset({Presence.DONE, Presence.SAVED}),
    Presence.DONE: frozenset({Presence.SAVED}),
    Presence.SAVED: frozenset(),
}
"""How a generation goes on; it may end at any time."""


@dataclass(slots=True, eq=False)
class Member:
    """One generation of an island."""

    island: int
    generation: str
    token: str
    nonce: str
    peer: Peer
    host: str
    pid: int
    instance: str
    ranks: int
    clock: StepClock
    heard_at: float
    presence: Presence = Presence.JOINING
    linked: bool = True
    """Its control link is open."""
    rank_peers: dict[int, Peer] = field(default_factory=dict)
    boxes: dict[int, tuple[Box, ...]] = field(default_factory=dict)
    counts_from: list[int] = field(default_factory=list)
    """Per fragment: the local step since which, as far as is known here, the island's work counts for its next push."""

    @property
    def joined(self) -> bool:
        return self.presence is not Presence.JOINING

    @property
    def done(self) -> bool:
        return self.presence in (Presence.DONE, Presence.SAVED)

    def enter(self, presence: Presence) -> None:
        """The generation goes on to what may follow."""
        assert presence in FOLLOWS[self.presence], f"{self}: {presence.value} cannot follow {self.presence.value}"
        self.presence = presence

    def __str__(self) -> str:
        return f"island {self.island} ({self.host}, pid {self.pid})"


class Roster:
    """All present generations, by id, by island and by connection."""

    def __init__(self) -> None:
        self.generations: dict[str, Member] = {}
        self.islands: dict[int, Member] = {}
        self.peers: dict[Peer, Member] = {}
        self.rank_peers: dict[Peer, tuple[Member, int]] = {}
        self.members: dict[int, Member] = {}
        """Islands that are members, in no particular order."""
        self.done = 0

    def welcome(self, hello: Hello, peer: Peer, generation: tuple[str, str], now: float) -> Member:
        """Begin a generation (id, join token) for the sender of a Hello that was found good."""
        assert hello.island not in self.islands and peer not in self.peers, "the old generation must end first"
        name, token = generation
        member = Member(
            island=hello.island,
            generation=name,
            token=token,
            nonce=hello.nonce,
            peer=peer,
            host=hello.host,
            pid=hello.pid,
            instance=hello.instance,
            ranks=hello.ranks,
            clock=StepClock(hello.step),
            heard_at=now,
        )
        self.generations[name] = self.islands[hello.island] = self.peers[peer] = member
        return member

    def bind_rank(self, member: Member, rank: int, peer: Peer, boxes: tuple[Box, ...]) -> None:
        """A rank of a generation speaks through `peer` from now on."""
        if (old := member.rank_peers.get(rank)) is not None:
            self.rank_peers.pop(old, None)
        self.unbind_rank(peer)
        member.rank_peers[rank], member.boxes[rank] = peer, boxes
        self.rank_peers[peer] = (member, rank)

    def unbind_rank(self, peer: Peer) -> None:
        """A rank's link is gone. Its boxes stay known: it may dial again."""
        if (bound := self.rank_peers.pop(peer, None)) is not None:
            member, rank = bound
            member.rank_peers.pop(rank, None)

    def admit(self, member: Member, fragments: int) -> None:
        """The generation is a member."""
        member.enter(Presence.TRAINING)
        member.counts_from = [member.clock.step] * fragments
        self.members[member.island] = member

    def finish(self, member: Member, presence: Presence) -> None:
        """A member is done, or has saved."""
        was_done = member.done
        member.enter(presence)
        self.done += not was_done

    def end(self, member: Member) -> None:
        """The generation is over."""
        del self.generations[member.generation], self.islands[member.island]
        self.peers.pop(member.peer, None)
        for peer in member.rank_peers.values():
            self.rank_peers.pop(peer, None)
        if member.joined:
            del self.members[member.island]
            self.done -= member.done

    def ordered(self) -> list[Member]:
        """Members in order of island id."""
        return [self.members[island] for island in sorted(self.members)]

    def validate(self) -> None:
        """Check the invariants."""
        assert self.done == sum(m.done for m in self.members.values())
        assert set(self.generations.values()) == set(self.islands.values()) == set(self.peers.values())
        for generation, member in self.generations.items():
            assert member.generation == generation and self.islands[member.island] is member
            assert self.peers[member.peer] is member
            assert member.joined == (member.island in self.members)
        for peer, (member, rank) in self.rank_peers.items():
            assert member.rank_peers[rank] == peer and self.generations[member.generation] is member
