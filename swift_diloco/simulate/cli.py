"""`swift-diloco simulate`: the command line of this package.

Three uses: plan a fleet (the default), `--preset paper`, and `worlds` (simulated worlds with faults). Invariant: a
mistake of the user is a `UserError`, which the caller prints as one line with exit code 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from swift_diloco.core.command_line import Parser
from swift_diloco.simulate.fleets import paper, report
from swift_diloco.simulate.fleets.fleet import ENCODED_BYTES, YEAR_S, Fleet, Mode, check_fleet
from swift_diloco.simulate.fleets.forecast import forecast
from swift_diloco.simulate.worlds import cli as worlds

PROGRAM = "swift-diloco simulate"

DESCRIPTION = """Forecast what a fleet of islands reaches under interruptions: goodput, utilisation, staleness and
traffic. Islands and syncer run their real decision code under a virtual clock; chips, steps and links are modelled."""

ASSUMED = (
    f"One parameter set for all rows: an interruption stops an elastic island for {paper.STOP_S:g} s and a plain job "
    f"for {paper.RESTART_S:g} s, and takes {paper.GROUP_CHIPS} chips away for {paper.REPAIR_S:g} s (these were fitted "
    f"to the nine figures); steps of {paper.STEP_S:g} s; one interruption per chip and year; an interruption during a "
    "stop is dealt with by that stop; the step that ran is lost and nothing else."
)


def main(argv: list[str]) -> int:
    """Run one use and return the exit code."""
    if argv[:1] == ["worlds"]:
        return worlds.main(argv[1:])
    args = _parser().parse_args(argv)
    if args.preset == "paper":
        return _paper(args)
    fleets = [_fleet(args, islands) for islands in args.islands]
    for fleet in fleets:
        check_fleet(fleet)
    planned = [(fleet, forecast(fleet)) for fleet in fleets]
    print(report.json_of(planned) if args.json else report.text_of(planned))
    return 0


def _paper(args: argparse.Namespace) -> int:
    rows = paper.paper_rows(args.seed)
    print(report.paper_json(rows) if args.json else f"{report.paper_text(rows)}\n\n{ASSUMED}")
    return 0


def _fleet(args: argparse.Namespace, islands: int) -> Fleet:
    chips = args.chips if args.total_chips is None else args.total_chips // islands
    return Fleet(
        islands=islands,
        chips=chips,
        mode=Mode(args.mode),
        step_s=args.step,
        interruption_s=args.interruption_days * 86_400.0,
        group_chips=args.group_chips,
        repair_s=args.repair,
        stop_s=args.stop,
        restart_s=args.restart,
        checkpoint_steps=args.checkpoint_steps,
        parameters=args.parameters,
        fragments=args.fragments,
        sync_every_steps=args.sync_every_steps,
        encoding=args.encoding,
        publish_encoding=args.publish_encoding,
        bandwidth=args.bandwidth * 1e9,
        latency_s=args.latency,
        syncer_bytes_s=args.syncer_bandwidth * 1e9,
        quorum=min(args.quorum, islands),
        min_islands=min(args.min_islands, islands),
        align=args.align,
        hours=args.hours,
        seed=args.seed,
    )


def _counts(text: str) -> list[int]:
    """`1,2,4` for several fleets at once."""
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, or several with commas") from None


def _parser() -> argparse.ArgumentParser:
    usual = Fleet()
    parser = Parser(prog=PROGRAM, description=DESCRIPTION, epilog=_EPILOG)
    fleet = parser.add_argument_group("the fleet")
    fleet.add_argument("--islands", type=_counts, default=[1, 2, 4, 8], help="or several: 1,2,4 (default: 1,2,4,8)")
    fleet.add_argument("--chips", type=int, default=usual.chips, help="per island (default: %(default)s)")
    fleet.add_argument("--total-chips", type=int, help="of all islands together, instead of --chips")
    fleet.add_argument("--step", type=float, default=usual.step_s, help="seconds per local step (default: %(default)s)")
    fleet.add_argument("--mode", choices=[mode.value for mode in Mode], default="elastic", help=_MODES)
    _numbers(fleet, usual)
    model = parser.add_argument_group("the model and its links")
    model.add_argument("--parameters", type=float, default=usual.parameters, help="(default: %(default)g)")
    model.add_argument("--fragments", type=int, default=usual.fragments, help="P (default: %(default)s)")
    model.add_argument("--sync-every-steps", type=int, default=usual.sync_every_steps, help="H (default: %(default)s)")
    model.add_argument("--encoding", choices=list(ENCODED_BYTES), default="f32", help="of deltas (default: f32)")
    model.add_argument("--publish-encoding", choices=["f32", "bf16"], default="f32", help="(default: f32)")
    model.add_argument(
        "--bandwidth", type=float, default=10.0, help="Gbit/s of an island's link (default: %(default)s)"
    )
    model.add_argument("--latency", type=float, default=usual.latency_s, help="seconds (default: %(default)s)")
    model.add_argument("--syncer-bandwidth", type=float, default=10.0, help=_SYNCER)
    model.add_argument("--quorum", type=int, default=0, help="0 is half the members (default: 0)")
    model.add_argument("--min-islands", type=int, default=1, help="(default: 1)")
    model.add_argument("--align", choices=["overwrite", "blend", "carry"], default=usual.align, help="(default: blend)")
    run = parser.add_argument_group("the simulation")
    run.add_argument("--preset", choices=["paper"], help="the setting of arXiv 2604.21428 beside the paper's figures")
    run.add_argument(
        "--hours", type=float, default=usual.hours, help="simulated with the syncer (default: %(default)s)"
    )
    run.add_argument("--seed", type=int, default=0, help="the same seed gives the same numbers (default: 0)")
    run.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _numbers(fleet: argparse._ArgumentGroup, usual: Fleet) -> None:
    """What interruptions do."""
    options: Sequence[tuple[str, type, float, str]] = (
        ("--interruption-days", float, YEAR_S / 86_400, "mean time between interruptions of one chip"),
        ("--group-chips", int, usual.group_chips, "chips that one interruption takes away (elastic)"),
        ("--repair", float, usual.repair_s, "seconds until they are back (elastic)"),
        ("--stop", float, usual.stop_s, "seconds for which an interruption stops the island (elastic)"),
        ("--restart", float, usual.restart_s, "seconds for which an interruption stops the island (plain)"),
        ("--checkpoint-steps", int, usual.checkpoint_steps, "steps between trainer checkpoints (plain)"),
    )
    for name, kind, default, words in options:
        fleet.add_argument(name, type=kind, default=default, help=f"{words} (default: %(default)s)")


_MODES = "elastic goes on with fewer chips after a short stop; plain stops until it is restarted (default: elastic)"
_SYNCER = "GB/s of memory traffic the syncer can do while it merges (default: %(default)s)"
_EPILOG = "`swift-diloco simulate worlds --help` runs simulated worlds with faults instead."
