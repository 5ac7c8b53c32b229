"""One question to a running syncer over its control connection, and its answer."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from swift_diloco.core.errors import PeerError, UserError
from swift_diloco.core.files.key_files import CurveKeys, load_pair, public_key, read_secret_file
from swift_diloco.core.files.run_folder import ADMIN_FILE, living_facts
from swift_diloco.core.formats import frames
from swift_diloco.core.formats.operator_messages import AdminReply, AdminRequest

ANSWER_S = 10.0
"""How long an answer may take; the syncer answers within a second unless it is not there."""


@dataclass(frozen=True)
class Target:
    """Which syncer, and who we are there."""

    address: str
    token: str = ""
    keys: CurveKeys | None = None


def target_of(found: argparse.Namespace) -> Target:
    """The syncer that the options name. Raises `UserError`."""
    if found.syncer and found.run_dir is not None:
        raise UserError("both --syncer and --run-dir are given; expected one of them")
    if found.syncer:
        if not found.syncer.startswith("tcp://"):
            raise UserError(f"--syncer is {found.syncer!r}; expected tcp://HOST:PORT")
        return _with_key(found.syncer, found.key, public_key(found.syncer_key) if found.syncer_key else "")
    folder = found.run_dir if found.run_dir is not None else Path()
    facts = living_facts(folder)
    if facts is None:
        raise UserError(f"no syncer lives in the run folder {folder.absolute()}; give --run-dir or --syncer")
    address = str(facts["address"]).replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    server = str(facts.get("public_key", ""))
    if found.key is not None or server:
        return _with_key(address, found.key, server)
    return Target(address, read_secret_file(folder / ADMIN_FILE, "admin token").strip())


def _with_key(address: str, key: Path | None, server: str) -> Target:
    if key is None:
        raise UserError(
            f"orders to {address} need --key: an operator's secret key file, or the run folder's admin token"
        )
    if server:
        return Target(address, keys=CurveKeys(load_pair(key), server))
    text = read_secret_file(key, "admin token").strip()
    if "\n" in text:
        raise UserError(f"{key} is a key file, and encryption needs the syncer's public key too: give --syncer-key")
    return Target(address, text)


def ask(target: Target, request: AdminRequest) -> AdminReply:
    """Send a request and wait for its answer. Raises `PeerError` when none comes."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int("[" in target.address))
        if target.keys is not None:
            socket.setsockopt_string(zmq.CURVE_SECRETKEY, target.keys.own.secret)
            socket.setsockopt_string(zmq.CURVE_PUBLICKEY, target.keys.own.public)
            socket.setsockopt_string(zmq.CURVE_SERVERKEY, target.keys.server)
        try:
            socket.connect(target.address)
        except zmq.ZMQError as error:
            raise UserError(f"{target.address} is no address: {error.strerror}") from None
        socket.send_multipart(frames.encode(msgspec.structs.replace(request, token=target.token)))
        if not socket.poll(int(ANSWER_S * 1000)):
            keys = "; it may not know the key" if target.keys is not None else "; it may demand a key (--key)"
            raise PeerError(f"no answer from {target.address} within {ANSWER_S:g} s{keys}")
        message, _ = frames.decode_from_syncer(socket.recv_multipart())
    finally:
        socket.close(0)
        context.term()
    if not isinstance(message, AdminReply) or message.nonce != request.nonce:
        raise PeerError(f"{target.address} answered with {type(message).__name__}; is it a syncer of this version?")
    return message
