"""`swift-diloco admin` and `swift-diloco status`: an operator's side of the syncer.

One request, one answer, on a connection of its own. Who the operator is, is told by the admin token of the syncer's run
folder, or, where connections are encrypted, by a key among the syncer's `--admin-keys`.

Knows the wire and how to print; it decides nothing.
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import zmq

from swift_diloco.core.errors import PeerError, UserError
from swift_diloco.core.files.key_files import CurveKeys, load_pair, public_key, read_secret_file
from swift_diloco.core.files.run_folder import ADMIN_FILE, living_facts
from swift_diloco.core.formats import frames
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminReply, AdminRequest
from swift_diloco.core.settings.schema import nearest

ANSWER_S = 10.0
"""How long an answer may take; the syncer answers within a second unless it is not there."""

ROWS_MAX = 64
"""Most members shown in the table."""

COMMANDS = {command.value: command for command in AdminCommand}


@dataclass(frozen=True)
class Target:
    """Which syncer, and who we are there."""

    address: str
    token: str = ""
    keys: CurveKeys | None = None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def main(words: list[str]) -> int:
    """`swift-diloco admin`. Returns the exit code; raises `UserError` and `PeerError`."""
    parser = _Parser(
        prog="swift-diloco admin",
        description="Give an order to a running syncer: " + ", ".join(COMMANDS) + ".",
        allow_abbrev=False,
    )
    parser.add_argument("command", metavar="COMMAND", help="what to do")
    parser.add_argument("changes", metavar="NAME=VALUE", nargs="*", help="for set: min_islands=2 quorum=1")
    parser.add_argument("--island", type=int, help="the island that is meant (default: every one)")
    parser.add_argument("--reason", default="", help="told to the islands and written on the tape")
    parser.add_argument("--json", action="store_true", help="for status: print it as JSON")
    _add_target(parser)
    found = parser.parse_args(words)
    command = COMMANDS.get(found.command.replace("-", "_"))
    if command is None:
        near = nearest(found.command, COMMANDS)
        raise UserError(f"unknown order {found.command!r}, the nearest is {near}; expected {', '.join(COMMANDS)}")
    request = AdminRequest(
        nonce=secrets.token_hex(8),
        token="",
        command=command,
        island=found.island,
        changes=_changes(command, found.changes),
        reason=found.reason,
    )
    return tell(ask(target_of(found), request), as_json=found.json)


def status(words: list[str]) -> int:
    """`swift-diloco status`."""
    parser = _Parser(prog="swift-diloco status", description="What a syncer does now.", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    _add_target(parser)
    found = parser.parse_args(words)
    request = AdminRequest(secrets.token_hex(8), "", AdminCommand.STATUS)
    return tell(ask(target_of(found), request), as_json=found.json)


def tell(reply: AdminReply, *, as_json: bool) -> int:
    """Print an answer. A refused order is a user's mistake."""
    if not reply.done:
        raise UserError(f"the syncer refused: {reply.text}")
    if reply.status:
        print(reply.status if as_json else table(json.loads(reply.status)))
    else:
        print(reply.text)
    return 0


# -- the other side ----------------------------------------------------------------------------------------------------


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-dir", type=Path, help="run folder of the syncer (default: this one)")
    parser.add_argument("--syncer", default="", metavar="ADDRESS", help="tcp://HOST:PORT, where the folder is not here")
    parser.add_argument("--key", type=Path, help="secret key file of the operator, or a copy of the run folder's token")
    parser.add_argument("--syncer-key", default="", help="public key of the syncer, or its file (with --syncer)")


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


def _changes(command: AdminCommand, words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    if command is not AdminCommand.SET:
        if words:
            raise UserError(f"{command.value} takes no {words[0]!r}; only set takes NAME=VALUE")
        return ()
    pairs = [word.partition("=") for word in words]
    for word, (name, sign, value) in zip(words, pairs, strict=True):
        if not (name and sign and value):
            raise UserError(f"{word!r} is no change; expected NAME=VALUE, such as min_islands=2")
    return tuple((name.replace("-", "_"), value) for name, _, value in pairs)


# -- the table ---------------------------------------------------------------------------------------------------------


def table(facts: Mapping[str, Any]) -> str:
    """The status for people."""
    lines = [
        f"{facts['phase']}: waiting for {facts['waiting_for']}",
        f"outer step {facts['t']}, versions {' '.join(map(str, facts['versions'])) or 'none yet'}",
    ]
    for each in facts["open"]:
        lines.append(
            f"  round {each['t']} (fragment {each['fragment']}, attempt {each['attempt']}): {each['stage']}, "
            f"{each['complete']} of {each['needed']} answers"
        )
    rows = [("island", "host", "step", "s/step", "")]
    rows += [_row(member) for member in facts["members"][:ROWS_MAX]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(facts["members"]) > ROWS_MAX:
        lines.append(f"… and {len(facts['members']) - ROWS_MAX} more")
    if facts["joining"]:
        lines.append(f"joining: {' '.join(map(str, facts['joining']))}")
    lines.append(
        f"pushed {_size(facts['bytes_pushed'])}, fetched {_size(facts['bytes_fetched'])}; "
        f"{facts['bad_messages']} bad and {facts['stale_messages']} stale messages"
    )
    return "\n".join(lines)


def _row(member: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    seconds = member["step_s"]
    notes = [
        word
        for word, holds in (
            ("done", member["done"]),
            ("owes an answer", member["waiting"]),
            ("link down", not member["linked"]),
        )
        if holds
    ]
    pace = "?" if seconds is None else f"{seconds:.2f}"
    return str(member["island"]), str(member["host"]), str(member["step"]), pace, ", ".join(notes)


def _size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"
