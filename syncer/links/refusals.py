"""What a message may be, given the connection it came over, and the answers to those that are not taken.

With keys, the connection's key says who speaks (`guard`). Without, everybody who reaches the socket may be an island,
and an operator is whoever can read the run folder's admin token. A sender is told why its message is not taken, people
are told rarely, and all are counted.

Invariant: a flood of bad messages neither fills the log nor, where a socket replays an earlier life, the
queue of answers.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable

from swift_diloco.core.formats.messages import Chunk, Fetch, Fetched, IslandMessage, Refused, SyncerMessage, Unknown
from swift_diloco.core.formats.operator_messages import AdminReply, AdminRequest
from syncer.events import Peer
from syncer.links.guard import PeerRole

COMPLAINT_INTERVAL_S = 5.0
"""Least time between two log lines about bad messages: a broken peer must not fill the disk."""

STALE_REPLY_INTERVAL_S = 1.0
"""Least time between two `Unknown` replies to one connection, which may replay hundreds of chunks of
an earlier life."""

log = logging.getLogger("syncer")


class Gate:
    """`admin_token` empty: nobody is an operator by a token."""

    def __init__(self, admin_token: str = "", *, guarded: bool = False) -> None:
        self._token = admin_token.encode()
        self._guarded = guarded

    def refusal(self, role: PeerRole, message: IslandMessage) -> str | None:
        """Why a message is not taken from a connection of this role; None when it is."""
        if not isinstance(message, AdminRequest):
            return None if PeerRole.ISLAND in role else "this key gives orders; it is no island's"
        if self._guarded:
            return None if PeerRole.ADMIN in role else "orders need a key that is among --admin-keys"
        if self._token and hmac.compare_digest(self._token, message.token.encode()):
            return None
        return "orders need the admin token of the syncer's run folder; give --run-dir, or its file as --key"


class Complaints:
    """One server's."""

    def __init__(self, session: str, send: Callable[[Peer, SyncerMessage], None]) -> None:
        self.bad = 0
        """Messages that are none of this protocol, or not the sender's to send."""
        self.stale = 0
        """Messages of a session or generation that is not known (any more)."""
        self._session = session
        self._send = send
        self._due = float("-inf")
        self._stale_due: dict[Peer, float] = {}

    def refuse(self, peer: Peer, reason: str, now: float) -> None:
        """A bad message."""
        self._count(peer, reason, now)
        self._send(peer, Refused(self._session, "", reason))

    def refuse_order(self, peer: Peer, request: AdminRequest, reason: str, now: float) -> None:
        """An order of somebody who may give none."""
        self._count(peer, reason, now)
        self._send(peer, AdminReply(self._session, request.nonce, False, reason))

    def refuse_stale(self, peer: Peer, message: Chunk | Fetch | Fetched, now: float) -> None:
        """What a socket replays from an earlier life, or sends before it is known, is not looked at."""
        self.stale += 1
        if now < self._stale_due.get(peer, now):
            return
        self._stale_due[peer] = now + STALE_REPLY_INTERVAL_S
        found = f"{type(message).__name__} of rank {message.rank}"
        reason = f"{found}: this link is not known to belong to its session and generation; join again"
        self._send(peer, Unknown(self._session, message.generation, reason))

    def told_unknown(self) -> None:
        """The coordinator answered a stale message itself."""
        self.stale += 1

    def forget(self, peer: Peer) -> None:
        """A connection is closed."""
        self._stale_due.pop(peer, None)

    def _count(self, peer: Peer, reason: str, now: float) -> None:
        self.bad += 1
        if now >= self._due:
            self._due = now + COMPLAINT_INTERVAL_S
            log.warning("refused a message of peer %s: %s (%d bad messages so far)", peer, reason, self.bad)
