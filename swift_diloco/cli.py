"""The `swift-diloco` command: a thin dispatcher, each subcommand importing only what it needs.

Knows no trainer and no socket. `swift-diloco syncer` becomes the syncer's own process, because this package never
imports the syncer. Invariant: a user's mistake is one line on stderr and exit code 2.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from swift_diloco import __version__
from swift_diloco.core.errors import DilocoError, InternalError, UserError, one_line
from swift_diloco.core.settings.schema import nearest

PROGRAM = "swift-diloco"
Command = Callable[[list[str]], int]


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
    command = COMMANDS.get(words[0])
    if command is None:
        raise UserError(
            f"unknown command {words[0]!r}, the nearest is {nearest(words[0], COMMANDS)}; see {PROGRAM} --help"
        )
    return command[0](words[1:])


def usage() -> str:
    """The help text."""
    lines = [f"  {name:<12} {text}" for name, (_, text) in COMMANDS.items()]
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


def quickstart(words: list[str]) -> int:
    """Run the demonstration."""
    from swift_diloco.tools.quickstart.cli import main as quickstart_main

    return quickstart_main(words)


def admin(words: list[str]) -> int:
    """Give an order to a running syncer."""
    from swift_diloco.tools.admin.cli import main as admin_main

    return admin_main(words)


def status(words: list[str]) -> int:
    """Show what a syncer does."""
    from swift_diloco.tools.admin.cli import status as admin_status

    return admin_status(words)


def keygen(words: list[str]) -> int:
    """Make key pairs."""
    from swift_diloco.tools.keygen.cli import main as keys_main

    return keys_main(words)


def simulate(words: list[str]) -> int:
    """Forecast a fleet, or run simulated worlds with faults."""
    from swift_diloco.simulate.cli import main as simulate_main

    return simulate_main(words)


def bench(words: list[str]) -> int:
    """Measure this machine."""
    from swift_diloco.tools.bench.cli import main as bench_main

    return bench_main(words)


def inspect(words: list[str]) -> int:
    """Show the sync record of a checkpoint."""
    from swift_diloco.tools.inspect.cli import main as inspect_main

    return inspect_main(words)


def audit(words: list[str]) -> int:
    """Audit an event tape."""
    from swift_diloco.tools.audit.cli import main as audit_main

    return audit_main(words)


def export(words: list[str]) -> int:
    """Make a model from a syncer's checkpoint."""
    from swift_diloco.tools.export.cli import main as export_main

    return export_main(words)


def _refuse_words(command: str, words: list[str]) -> None:
    if words:
        raise UserError(f"{PROGRAM} {command} takes no arguments, found {' '.join(words)}")


COMMANDS: dict[str, tuple[Command, str]] = {
    "quickstart": (quickstart, "train a small model on two islands of this machine and report"),
    "syncer": (syncer, "run the syncer (the same as swift-diloco-syncer)"),
    "status": (status, "show what a running syncer does: members, rounds, for whom it waits"),
    "admin": (admin, "give an order to a running syncer: save, save_and_stop, abort, set, kick, checkpoint, stop"),
    "inspect": (inspect, "show the sync record of a trainer checkpoint: what it stands on, what was done since"),
    "keygen": (keygen, "make key pairs for encrypted connections"),
    "simulate": (simulate, "forecast goodput, staleness and traffic of a fleet under interruptions"),
    "bench": (bench, "measure merge, link, brain and sync on this machine, each beside its ceiling"),
    "audit": (audit, "prove from an event tape that nothing was merged twice, and account for every step"),
    "export": (export, "make a model that transformers loads from a syncer's checkpoint"),
    "plugin-path": (plugin_path, "print the plugin file, for --external_plugins without the start-up hook"),
    "version": (version, "print the version"),
}
