"""From descriptors to peers: who is gone when a connection closes, also when descriptors are reused."""

from __future__ import annotations

import zmq

from syncer.links.descriptors import Peers

ACCEPTED, DISCONNECTED = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_DISCONNECTED)


def test_closed_connection_is_told_by_its_peer_once() -> None:
    peers = Peers()
    assert peers.noted(ACCEPTED, 7) is None
    assert peers.claim("x", 7) and peers.claim("x", 7)
    assert peers.connected == 1
    assert peers.noted(DISCONNECTED, 7) == "x"
    assert peers.noted(DISCONNECTED, 7) is None
    assert peers.connected == 0


def test_connection_that_never_spoke_is_nobody() -> None:
    peers = Peers()
    peers.noted(ACCEPTED, 7)
    assert peers.noted(DISCONNECTED, 7) is None
    assert peers.noted(DISCONNECTED, 8) is None


def test_message_read_after_its_connection_closed_is_told_apart() -> None:
    peers = Peers()
    peers.noted(ACCEPTED, 7)
    peers.noted(DISCONNECTED, 7)
    assert not peers.claim("x", 7)


def test_reused_descriptor_belongs_to_the_first_peer_heard_on_it_since() -> None:
    peers = Peers()
    peers.noted(ACCEPTED, 7)
    peers.claim("x", 7)
    peers.noted(DISCONNECTED, 7)
    peers.noted(ACCEPTED, 7)
    assert peers.claim("y", 7)
    assert peers.claim("late", 7)  # Its lease decides.
    assert peers.noted(DISCONNECTED, 7) == "y"


def test_descriptor_accepted_again_without_news_of_its_end_ends_the_former_peer() -> None:
    peers = Peers()
    peers.noted(ACCEPTED, 7)
    peers.claim("x", 7)
    assert peers.noted(ACCEPTED, 7) == "x"


def test_without_descriptors_nobody_is_called_gone() -> None:
    peers = Peers()
    assert peers.claim("x", None) and peers.claim("y", 9)
    assert peers.noted(DISCONNECTED, 9) is None
