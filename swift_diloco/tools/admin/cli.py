"""`swift-diloco admin` and `swift-diloco status`: an operator's side of the syncer.

One request, one answer, on a connection of its own. Who the operator is, is told by the admin token of the syncer's run
folder, or, where connections are encrypted, by a key among the syncer's `--admin-keys`.

Knows the wire and how to print; it decides nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from swift_diloco.core.command_line import Parser
from swift_diloco.core.errors import UserError
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminReply, AdminRequest
from swift_diloco.core.formats.status import decode
from swift_diloco.core.settings.schema import nearest
from swift_diloco.core.story.dump import lines, parsed
from swift_diloco.tools.admin.ask import ask, target_of
from swift_diloco.tools.admin.table import table

COMMANDS = {command.value: command for command in AdminCommand}


def main(words: list[str]) -> int:
    """`swift-diloco admin`. Returns the exit code; raises `UserError` and `PeerError`."""
    parser = Parser(
        prog="swift-diloco admin",
        description="Give an order to a running syncer: " + ", ".join(COMMANDS) + ".",
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
    return tell(request, ask(target_of(found), request), as_json=found.json)


def status(words: list[str]) -> int:
    """`swift-diloco status`."""
    parser = Parser(prog="swift-diloco status", description="What a syncer does now.")
    parser.add_argument("--story", action="store_true", help="the last events of its brain, and what came of each")
    parser.add_argument("--json", action="store_true", help="print it as JSON; a story so that a test can replay it")
    _add_target(parser)
    found = parser.parse_args(words)
    request = AdminRequest(secrets.token_hex(8), "", AdminCommand.STORY if found.story else AdminCommand.STATUS)
    return tell(request, ask(target_of(found), request), as_json=found.json)


def tell(request: AdminRequest, reply: AdminReply, *, as_json: bool) -> int:
    """Print an answer. A refused order is a user's mistake."""
    if not reply.done:
        raise UserError(f"the syncer refused: {reply.text}")
    if not reply.status:
        print(reply.text)
    elif as_json:
        print(reply.status.rstrip())
    elif request.command is AdminCommand.STORY:
        print("\n".join(lines(parsed(reply.status))))
    else:
        print(table(decode(reply.status)))
    return 0


# -- the other side ----------------------------------------------------------------------------------------------------


def _add_target(parser: Parser) -> None:
    parser.add_argument("--run-dir", type=Path, help="run folder of the syncer (default: this one)")
    parser.add_argument("--syncer", default="", metavar="ADDRESS", help="tcp://HOST:PORT, where the folder is not here")
    parser.add_argument("--key", type=Path, help="secret key file of the operator, or a copy of the run folder's token")
    parser.add_argument("--syncer-key", default="", help="public key of the syncer, or its file (with --syncer)")


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
