"""Which connections belong to which generation, and what each owner rank's streams are.

The coordinator decides who belongs; this is the server's book of it, asked for every bulk message.

Invariants: a generation is known from its Welcome to its end; a rank has at most one bulk link; a connection that is
gone belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout
from syncer.events import Peer, RegisterRank
from syncer.numbers.fragment_stream import FragmentStream


@dataclass(eq=False)
class RankLink:
    """One owner rank of one generation. `peer` is None while its bulk link is down."""

    generation: str
    island: int
    rank: int
    pieces: PieceMap
    peer: Peer | None
    _streams: dict[int, FragmentStream] = field(default_factory=dict)

    def stream(self, fragment: int) -> FragmentStream:
        """The rank's stream of a fragment."""
        stream = self._streams.get(fragment)
        if stream is None:
            stream = self._streams[fragment] = FragmentStream(self.pieces, fragment)
        return stream


@dataclass(eq=False)
class _Generation:
    control: Peer | None = None
    ranks: dict[int, RankLink] = field(default_factory=dict)


class RankLinks:
    """The book of generations and their links."""

    def __init__(self) -> None:
        self._generations: dict[str, _Generation] = {}
        self._of_peer: dict[Peer, RankLink] = {}

    def welcomed(self, generation: str, control: Peer) -> None:
        """The control link of a generation is known."""
        self._generations.setdefault(generation, _Generation()).control = control

    def register(self, effect: RegisterRank, layout: Layout, plan: FragmentPlan) -> RankLink:
        """Book a rank's bulk link, in place of an earlier one."""
        ranks = self._generations.setdefault(effect.generation, _Generation()).ranks
        known = ranks.get(effect.rank)
        if known is not None and known.peer is not None:
            self._of_peer.pop(known.peer, None)
            known.peer = None
        pieces = PieceMap(layout, plan, effect.boxes)
        link = RankLink(effect.generation, effect.island, effect.rank, pieces, effect.peer)
        ranks[effect.rank] = self._of_peer[effect.peer] = link
        return link

    def bulk_peer(self, generation: str, rank: int) -> Peer | None:
        """The bulk link of a rank, when it is up."""
        link = self._generations.get(generation, _Generation()).ranks.get(rank)
        return link.peer if link is not None else None

    def forget(self, generation: str) -> list[RankLink]:
        """The generation is over; returns the links it had."""
        gone = self._generations.pop(generation, _Generation())
        for link in gone.ranks.values():
            if link.peer is not None:
                self._of_peer.pop(link.peer, None)
                link.peer = None
        return list(gone.ranks.values())

    def peer_gone(self, peer: Peer) -> RankLink | None:
        """A connection is closed; returns the bulk link that it was."""
        for generation in self._generations.values():
            if generation.control == peer:
                generation.control = None
        link = self._of_peer.pop(peer, None)
        if link is not None:
            link.peer = None
        return link

    def find(self, peer: Peer, generation: str, rank: int) -> RankLink | None:
        """The rank that speaks on this connection, if it is the one it says it is."""
        link = self._of_peer.get(peer)
        return link if link is not None and (link.generation, link.rank) == (generation, rank) else None

    def ranks(self, generation: str) -> list[RankLink]:
        """Owner ranks of a generation in rank order; empty when it is not known."""
        known = self._generations.get(generation, _Generation()).ranks
        return [known[rank] for rank in sorted(known)]

    def everybody(self) -> Iterator[tuple[str, Peer]]:
        """Each connection of each generation, with the generation's name."""
        for name, generation in self._generations.items():
            peers = [generation.control, *(link.peer for link in generation.ranks.values())]
            yield from ((name, peer) for peer in dict.fromkeys(peers) if peer is not None)
