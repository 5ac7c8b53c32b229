"""Who may say what over which connection, and what a sender is told whose message is not taken."""

from __future__ import annotations

import logging

import pytest

from swift_diloco.core.formats.messages import Fetch, Leave, Refused, SyncerMessage, Unknown, ValueName
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminReply, AdminRequest
from syncer.events import Peer
from syncer.links.guard import PeerRole
from syncer.links.refusals import COMPLAINT_INTERVAL_S, STALE_REPLY_INTERVAL_S, Complaints, Gate

TRAINS = Leave("s", "g", "")
FETCH = Fetch("s", "g", 1, ValueName(0, 0, "d"), 0, 1)


def order(token: str = "") -> AdminRequest:
    return AdminRequest("nonce", token, AdminCommand.STOP)


BY_TOKEN = "orders need the admin token of the syncer's run folder"
BY_KEY = "orders need a key that is among --admin-keys"


@pytest.mark.parametrize(
    ("gate", "role", "message", "refusal"),
    [
        (Gate("t"), PeerRole.ISLAND, TRAINS, None),
        (Gate("t"), PeerRole.ADMIN, TRAINS, "this key gives orders; it is no island's"),
        (Gate("t"), PeerRole.ISLAND | PeerRole.ADMIN, TRAINS, None),
        (Gate("t"), PeerRole.ISLAND, order("t"), None),
        (Gate("t"), PeerRole.ISLAND, order("T"), BY_TOKEN),
        (Gate("t"), PeerRole.ISLAND, order(), BY_TOKEN),
        (Gate(), PeerRole.ISLAND, order(), BY_TOKEN),
        (Gate("t", guarded=True), PeerRole.ISLAND, order("t"), BY_KEY),
        (Gate("t", guarded=True), PeerRole.ADMIN, order(), None),
    ],
)
def test_role_and_token_decide_whose_message_is_taken(
    gate: Gate, role: PeerRole, message: Leave | AdminRequest, refusal: str | None
) -> None:
    found = gate.refusal(role, message)
    assert found is None if refusal is None else found is not None and found.startswith(refusal)


class Post:
    """What was sent to whom."""

    def __init__(self) -> None:
        self.sent: list[tuple[Peer, SyncerMessage]] = []
        self.complaints = Complaints("s", lambda peer, message: self.sent.append((peer, message)))


@pytest.fixture
def post() -> Post:
    return Post()


def test_every_bad_message_is_answered_and_counted_but_the_log_is_not_filled(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="syncer")
    for i in range(5):
        post.complaints.refuse("a", f"reason {i}", i * COMPLAINT_INTERVAL_S / 4)
    assert post.sent == [("a", Refused("s", "", f"reason {i}")) for i in range(5)]
    assert post.complaints.bad == 5
    assert [record.getMessage() for record in caplog.records] == [
        "refused a message of peer a: reason 0 (1 bad messages so far)",
        "refused a message of peer a: reason 4 (5 bad messages so far)",
    ]


def test_order_of_somebody_who_may_give_none_is_answered_as_an_order(post: Post) -> None:
    post.complaints.refuse_order("a", order(), "no", 0.0)
    assert post.sent == [("a", AdminReply("s", "nonce", False, "no"))] and post.complaints.bad == 1


def test_replayed_messages_get_one_answer_per_connection_and_second(post: Post) -> None:
    reason = "Fetch of rank 1: this link is not known to belong to its session and generation; join again"
    for peer, now in (("a", 0.0), ("a", 0.9), ("b", 0.9), ("a", STALE_REPLY_INTERVAL_S)):
        post.complaints.refuse_stale(peer, FETCH, now)
    assert post.sent == [(peer, Unknown("s", "g", reason)) for peer in ("a", "b", "a")]
    assert (post.complaints.stale, post.complaints.bad) == (4, 0)


def test_connection_that_is_closed_is_forgotten(post: Post) -> None:
    post.complaints.refuse_stale("a", FETCH, 0.0)
    post.complaints.forget("a")
    post.complaints.forget("nobody")
    post.complaints.refuse_stale("a", FETCH, 0.1)
    assert [peer for peer, _ in post.sent] == ["a", "a"]
