"""`swift-diloco bench NAME …`: one bench or all of them, a line of JSON per figure.

A figure that misses its target is no error: machines differ. A bench's flags are the fields of what its `run` takes.
Invariant: a bench imports what it needs only when it is asked for, so that `merge` and `brain` run on a syncer's host
without torch.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from swift_diloco.core.command_line import Parser
from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.schema import nearest
from swift_diloco.tools.bench.lines import Figure, say
from swift_diloco.tools.bench.processes import THREADS_VARIABLE

PROGRAM = "swift-diloco bench"

BENCHES = {
    "merge": "outer step of 4 islands (rda, Nesterov) against copying memory",
    "link": "push and fetch of one rank against raw ZeroMQ",
    "brain": "events per second of the syncer's brain",
    "sync": "time in which training is blocked by a full-model sync",
}
"""Name of the module and what it measures."""


def main(argv: Sequence[str]) -> int:
    """Run one bench, or all without a name."""
    words = list(argv)
    if words[:1] in (["-h"], ["--help"]):
        print(usage())
        return 0
    named = bool(words) and not words[0].startswith("-")
    if named and words[0] not in BENCHES:
        raise UserError(f"unknown bench {words[0]!r}, the nearest is {nearest(words[0], BENCHES)}; see {PROGRAM} -h")
    if not named and words:
        raise UserError(f"{words[0]} belongs to one bench; expected {PROGRAM} NAME {words[0]}, found no name")
    os.environ.setdefault(THREADS_VARIABLE, "2")
    for name in words[:1] if named else BENCHES:
        for figure in measure(name, words[1:]):
            say(figure)
    return 0


def measure(name: str, words: Sequence[str]) -> list[Figure]:
    """The figures of one bench."""
    try:
        module = importlib.import_module(f"swift_diloco.tools.bench.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UserError(f"bench {name} runs an island, which needs torch; install swift-diloco[cpu]") from None
    run: Callable[[Any], list[Figure]] = module.run
    return run(options_of(get_type_hints(run)["options"], f"{PROGRAM} {name}", BENCHES[name], words))


def options_of(kind: type[Any], program: str, about: str, words: Sequence[str]) -> Any:
    """The options of a bench from its flags: one per field, of the type of its default."""
    parser = Parser(prog=program, description=about)
    for each in fields(kind):
        parser.add_argument(
            "--" + each.name.replace("_", "-"),
            type=type(each.default),
            default=each.default,
            help=f"(default: {each.default})",
        )
    given = vars(parser.parse_args(list(words)))
    for field, value in given.items():
        if value <= 0:
            raise UserError(f"--{field.replace('_', '-')} is {value}; expected more than 0")
    return kind(**given)


def usage() -> str:
    """The help text."""
    lines = [f"  {name:<9} {what}" for name, what in BENCHES.items()]
    head = [
        f"usage: {PROGRAM} [NAME [--OPTION VALUE …]]",
        "",
        "Without a name all are run. NAME --help: its options.",
        "",
    ]
    return "\n".join([*head, *lines])
