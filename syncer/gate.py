"""What a message may be, given the connection it came over: the shell's judgement before anything is done with it.

With keys, the connection's key says who speaks (`guard`). Without, everybody who reaches the socket may be an island,
and an operator is whoever can read the run folder's admin token.
"""

from __future__ import annotations

import hmac

from swift_diloco.core.formats.messages import IslandMessage
from swift_diloco.core.formats.operator_messages import AdminRequest
from syncer.guard import Role


class Gate:
    """`admin_token` empty: nobody is an operator by a token."""

    def __init__(self, admin_token: str = "", *, guarded: bool = False) -> None:
        self._token = admin_token.encode()
        self._guarded = guarded

    def refusal(self, role: Role, message: IslandMessage) -> str | None:
        """Why a message is not taken from a connection of this role; None when it is."""
        if not isinstance(message, AdminRequest):
            return None if Role.ISLAND in role else "this key gives orders; it is no island's"
        if self._guarded:
            return None if Role.ADMIN in role else "orders need a key that is among --admin-keys"
        if self._token and hmac.compare_digest(self._token, message.token.encode()):
            return None
        return "orders need the admin token of the syncer's run folder; give --run-dir, or its file as --key"
