"""`swift-diloco quickstart`: the command line around `run_quickstart`."""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from swift_diloco.core.command_line import Parser
from swift_diloco.core.errors import DilocoError
from swift_diloco.tools.quickstart.errors import EXIT_FAILED, EXIT_INTERRUPTED

PROGRAM = "swift-diloco quickstart"

STEPS_DEFAULT = 240
STEPS_MIN, STEPS_MAX = 20, 10_000
"""Fewer steps than 20 are over before anything was merged; more than 10,000 are not a quickstart."""

ISLANDS_MIN, ISLANDS_MAX = 1, 8
"""Each island is a process of about 1 GiB that wants a core."""


def _bounded(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: a whole number between two bounds."""

    def whole_number(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
        return value

    return whole_number


def parse(argv: list[str]) -> argparse.Namespace:
    """The options. Raises `UserError`."""
    parser = Parser(
        prog=PROGRAM,
        description="Train a small Qwen3 on questions about the Python standard library with a syncer and real "
        "islands (Megatron or transformers) on this machine's CPU, and report how it went. Needs no GPU, no network.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("quickstart-run"), help="folder to write (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=_bounded(STEPS_MIN, STEPS_MAX), default=STEPS_DEFAULT, help="local steps (default: %(default)s)"
    )
    parser.add_argument(
        "--islands", type=_bounded(ISLANDS_MIN, ISLANDS_MAX), default=2, help="number of islands (default: %(default)s)"
    )
    parser.add_argument(
        "--trainer",
        choices=("megatron", "swift"),
        default="megatron",
        help="train with `megatron sft` or with `swift sft` (default: %(default)s)",
    )
    parser.add_argument(
        "--chaos", action="store_true", help="kill an island and then the syncer midway, and start both again"
    )
    options = parser.parse_args(argv)
    if options.chaos and options.islands < 2:
        parser.error("--chaos needs at least 2 islands: one is killed, and the others go on")
    return options


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does: everything is stopped first."""
    raise KeyboardInterrupt


def main(argv: list[str]) -> int:
    """Run the quickstart; 0 when everything held, 1 when something failed, 2 for a mistake of the user."""
    try:
        options = parse(argv)
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read by huggingface_hub when it is imported, which comes next
        from swift_diloco.tools.quickstart.run import QuickstartOptions, run_quickstart

        signal.signal(signal.SIGTERM, _interrupt)
        chosen = QuickstartOptions(options.out, options.steps, options.islands, options.trainer, options.chaos)
        report = run_quickstart(chosen, say=_say)
    except DilocoError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted; all processes are stopped", file=sys.stderr, flush=True)
        return EXIT_INTERRUPTED
    for check in report.checks:
        _say(f"{'ok    ' if check.passed else 'FAILED'} {check.name}: {check.detail}")
    _say(
        f"held-out loss {report.held_out_loss_before:.4f} -> {report.held_out_loss_after:.4f} "
        f"(alone {report.alone.held_out_loss:.4f}) in {report.seconds:.0f} s; see {options.out / 'report.html'}"
    )
    return 0 if report.passed else EXIT_FAILED


def _say(words: str) -> None:
    print(words, flush=True)
