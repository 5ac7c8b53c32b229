"""Who may connect, and as what: ZeroMQ's encrypted connections (CURVE) with a list of public keys.

ZeroMQ asks a handler inside the process about every key that wants in, before a single message of it is taken (ZAP,
ZeroMQ RFC 27). The handler is a thread with one socket. Without keys there is no guard, and everybody is an island.

Knows keys and roles, nothing of messages. Invariant: a key that is not listed gets no byte of a message.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from enum import Flag, auto
from pathlib import Path

import zmq
from zmq.utils import z85

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.key_files import KeyPair, load_pair, load_public_keys
from swift_diloco.core.settings.syncer_settings import SyncerSettings

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
ZAP_DOMAIN = "swift-diloco"
ZAP_FRAMES = 7
"""Version, request, domain, address, identity, mechanism and, for CURVE, the public key."""

POLL_MS = 200
"""Longest time that the handler takes to see that it is to end."""

CLOSE_S = 5.0
"""How long closing waits for the handler."""

LOGGED_KEYS_MAX = 256
"""Refused keys that are named in the log, once each; more would be somebody who fills it."""

log = logging.getLogger("syncer")


class PeerRole(Flag):
    """What a connection may do."""

    NOBODY = 0
    ISLAND = auto()
    """Take part."""
    ADMIN = auto()
    """Give orders."""


@dataclass(frozen=True)
class KeyRing:
    """The syncer's own keys and those it knows."""

    own: KeyPair
    islands: frozenset[str]
    admins: frozenset[str] = field(default_factory=frozenset)

    def role(self, public: str) -> PeerRole:
        """What the owner of a public key may do."""
        role = PeerRole.ISLAND if public in self.islands else PeerRole.NOBODY
        return role | PeerRole.ADMIN if public in self.admins else role


def load_ring(settings: SyncerSettings) -> KeyRing | None:
    """The keys that the settings name; None when connections are in the clear. Raises `UserError`."""
    if not settings.curve_key:
        for name, value in (("--curve-allow", settings.curve_allow), ("--admin-keys", settings.admin_keys)):
            if value:
                raise UserError(f"{name} is given without --curve-key, the secret key file of the syncer")
        return None
    if not settings.curve_allow:
        raise UserError("--curve-key is given without --curve-allow, the folder of the islands' public keys")
    own = load_pair(Path(settings.curve_key).expanduser())
    admins: frozenset[str] = frozenset()
    if settings.admin_keys:
        admins = load_public_keys(Path(settings.admin_keys).expanduser())
    # A folder may hold all public keys of a run: the syncer's own and the operators' are no islands' there.
    islands = load_public_keys(Path(settings.curve_allow).expanduser()) - admins - {own.public}
    if not islands:
        raise UserError(f"--curve-allow {settings.curve_allow} holds no public key of an island")
    return KeyRing(own, islands, admins)


class Guard:
    """Started by `start` before a socket is bound, ended by `close` before its context is."""

    def __init__(self, ring: KeyRing) -> None:
        self.ring = ring
        self.refused = 0
        """Handshakes that were turned down."""
        self._named: set[str] = set()
        self._closing = False

    def start(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Answer ZeroMQ's questions about keys from now on."""
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ZAP_ADDRESS)
        self._thread = threading.Thread(target=self._answer_all, name="guard", daemon=True)
        self._thread.start()

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Have a socket, not bound yet, take encrypted connections only."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, self.ring.own.secret)
        socket.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)

    def close(self) -> None:
        """End the handler."""
        self._closing = True
        self._thread.join(CLOSE_S)

    def _answer_all(self) -> None:
        try:
            while not self._closing:
                if self._socket.poll(POLL_MS):
                    self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
        finally:
            self._socket.close(0)

    def _answer(self, parts: list[bytes]) -> list[bytes]:
        """ZeroMQ's question and our answer: 200 with the key as the user's name, or 400."""
        request = parts[1] if len(parts) > 1 else b""
        fits = len(parts) == ZAP_FRAMES and parts[0] == ZAP_VERSION and parts[5] == b"CURVE" and len(parts[6]) == 32
        public = z85.encode(parts[6]).decode() if fits else ""
        if fits and self.ring.role(public):
            return [ZAP_VERSION, request, b"200", b"OK", public.encode(), b""]
        self.refused += 1
        self._tell(public, parts[3].decode("ascii", "replace") if len(parts) > 3 else "?")
        return [ZAP_VERSION, request, b"400", b"this key is not allowed", b"", b""]

    def _tell(self, public: str, address: str) -> None:
        if public not in self._named and len(self._named) < LOGGED_KEYS_MAX:
            self._named.add(public)
            log.warning("turned down %s: its public key %s is not in --curve-allow", address, public or "(none)")
