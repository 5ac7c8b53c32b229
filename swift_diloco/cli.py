"""The `swift-diloco` command: a table of subcommands, each loaded only when it is asked for.

Knows no trainer and no socket. `swift-diloco syncer` becomes the syncer's own process, because this package never
imports the syncer. Invariant: a user's mistake is one line on stderr and exit code 2.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from swift_diloco import __version__
from swift_diloco.core.errors import DilocoError, InternalError, UserError, one_line
from swift_diloco.core.settings.schema import nearest

PROGRAM = "swift-diloco"

COMMANDS = {
    "quickstart": ("tools.quickstart.cli", "main", "train a small model on two islands of this machine and report"),
    "syncer": ("cli", "syncer", "run the syncer (the same as swift-diloco-syncer)"),
    "status": ("tools.admin.cli", "status", "show what a running syncer does: members, rounds, for whom it waits"),
    "admin": (
        *("tools.admin.cli", "main"),
        "give an order to a running syncer: save, save_and_stop, abort, set, kick, checkpoint, stop",
    ),
    "inspect": (
        *("tools.inspect.cli", "main"),
        "show the sync record of a trainer checkpoint: what it stands on, what was done since",
    ),
    "keygen": ("tools.keygen.cli", "main", "make key pairs for encrypted connections"),
    "simulate": ("simulate.cli", "main", "forecast goodput, staleness and traffic of a fleet under interruptions"),
    "bench": (
        "tools.bench.cli",
        "main",
        "measure merge, link, brain and sync on this machine, each beside its ceiling",
    ),
    "audit": (
        *("tools.audit.cli", "main"),
        "prove from an event tape that nothing was merged twice, and account for every step",
    ),
    "export": ("tools.export.cli", "main", "make a model that transformers loads from a syncer's checkpoint"),
    "plugin-path": ("cli", "plugin_path", "print the plugin file, for --external_plugins without the start-up hook"),
    "version": ("cli", "version", "print the version"),
}
"""Name, module of this package, function in it (words -> exit code), and what it is for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return dispatch(words)
    except InternalError:
        raise
    except DilocoError as error:
        print(f"{PROGRAM}: error: {one_line(error)}", file=sys.stderr)
        return error.exit_code


def dispatch(words: list[str]) -> int:
    """Find the subcommand named first and give it the other words."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] == "--version":
        words[0] = "version"
    return function_of(words[0])(words[1:])


def function_of(name: str) -> Callable[[list[str]], int]:
    """The function of a subcommand. Raises `UserError` where there is no such command."""
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}, the nearest is {nearest(name, COMMANDS)}; see {PROGRAM} --help")
    module, function, _ = COMMANDS[name]
    found: Callable[[list[str]], int] = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    return found


def usage() -> str:
    """The help text."""
    lines = [f"  {name:<12} {text}" for name, (*_, text) in COMMANDS.items()]
    return "\n".join([f"usage: {PROGRAM} COMMAND …", "", *lines])


def plugin_path(words: list[str]) -> int:
    """Print the file for `--external_plugins`."""
    _refuse_words("plugin-path", words)
    print(Path(__file__).resolve().parent / "launch" / "entry" / "swift_diloco_plugin.py")
    return 0


def version(words: list[str]) -> int:
    """Print the version."""
    _refuse_words("version", words)
    print(f"{PROGRAM} {__version__}")
    return 0


def syncer(words: list[str]) -> int:
    """Become the syncer: same process id, so that signals reach it."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "syncer", *words])


def _refuse_words(command: str, words: list[str]) -> None:
    if words:
        raise UserError(f"{PROGRAM} {command} takes no arguments, found {' '.join(words)}")
