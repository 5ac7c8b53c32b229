"""Which connection has which socket descriptor, so that a closed connection is known by its peer within milliseconds.

ZeroMQ tells of a closed connection on the socket's monitor, by descriptor, and names the descriptor of each message
(`ZMQ_SRCFD`). Descriptors are reused at once by the next connection, so each is counted anew from its acceptance: the
first peer heard on a descriptor since then owns it. In the rare race where that is the wrong one, or where descriptors
are not told, no harm is done: the peer's lease decides.

Knows nothing of generations or messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import zmq

from syncer.events import Peer


@dataclass
class _Descriptor:
    open: bool
    peer: Peer | None = None


class Peers:
    """Descriptors and the peers heard on them."""

    def __init__(self) -> None:
        self._descriptors: dict[int, _Descriptor] = {}
        self._of_peer: dict[Peer, int] = {}

    @property
    def connected(self) -> int:
        """Open connections, also of peers that have not spoken."""
        return sum(each.open for each in self._descriptors.values())

    def noted(self, event: int, descriptor: int) -> Peer | None:
        """A monitor event; returns the peer whose connection is closed by it."""
        if event == zmq.EVENT_ACCEPTED:
            old = self._descriptors.get(descriptor)
            self._descriptors[descriptor] = _Descriptor(open=True)
            return self._unmap(old)
        if event == zmq.EVENT_DISCONNECTED and descriptor in self._descriptors:
            closed = self._descriptors[descriptor]
            closed.open = False
            return self._unmap(closed)
        return None

    def claim(self, peer: Peer, descriptor: int | None) -> bool:
        """A message of a peer came over a descriptor; False when its connection is closed already."""
        if descriptor is None or peer in self._of_peer:
            return True
        known = self._descriptors.get(descriptor)
        if known is None:
            return True
        if not known.open:
            return False
        if known.peer is None:
            known.peer = peer
            self._of_peer[peer] = descriptor
        return True

    def _unmap(self, descriptor: _Descriptor | None) -> Peer | None:
        if descriptor is None or descriptor.peer is None:
            return None
        peer, descriptor.peer = descriptor.peer, None
        self._of_peer.pop(peer, None)
        return peer
