"""`swift-diloco simulate worlds`: run many simulated worlds and check every property, or replay one of them.

What it prints on a failure is enough to see it again: the seed, the plan as one line of JSON, and what the world said.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from swift_diloco.core.command_line import Parser
from swift_diloco.core.errors import UserError
from swift_diloco.simulate.worlds.plans import Plan, calm_plan, plan_from_json, plan_json, rough_plan
from swift_diloco.simulate.worlds.run import Run

LINES_SHOWN = 40
"""Last lines of a failed world's story that are printed."""

SEEDS_MAX = 1_000_000
"""Most seeds of one command: half a day on one core."""

BATCH = 50
"""Seeds that a worker process takes at once."""


@dataclass(frozen=True)
class WorldEnd:
    """What became of one world."""

    seed: int
    failure: str
    fired: dict[str, int]
    story: tuple[str, ...] = ()


def outcome_of(plan: Plan) -> WorldEnd:
    """Run one plan."""
    run = Run(plan)
    try:
        run.finish()
    except Exception as error:  # whatever a world ends with is told with its seed
        notes = [line for note in error.__notes__ for line in note.splitlines()]
        failure = "\n".join([f"{type(error).__name__}: {error}", *notes])
        return WorldEnd(plan.seed, failure, run.world.fired, tuple(run.world.log))
    return WorldEnd(plan.seed, "", run.world.fired, tuple(run.world.log))


def _quiet(plan: Plan) -> WorldEnd:
    """The same without the story of a world that went well: it has to travel between processes."""
    outcome = outcome_of(plan)
    story = outcome.story[-LINES_SHOWN:] if outcome.failure else ()
    return WorldEnd(plan.seed, outcome.failure, outcome.fired, story)


def _calm(seed: int) -> WorldEnd:
    return _quiet(calm_plan(seed))


def _rough(seed: int) -> WorldEnd:
    return _quiet(rough_plan(seed))


def main(argv: list[str]) -> int:
    """Returns 0 when every world kept every property, 1 otherwise."""
    args = _parse(argv)
    if args.plan is not None:
        return _replay(_read(args.plan))
    if args.seeds == 1:
        return _replay((calm_plan if args.calm else rough_plan)(args.first))
    seeds = range(args.first, args.first + args.seeds)
    one = _calm if args.calm else _rough
    if args.jobs == 1:
        return _report(map(one, seeds))
    with ProcessPoolExecutor(args.jobs) as pool:
        return _report(pool.map(one, seeds, chunksize=BATCH))


def _report(outcomes: Iterable[WorldEnd]) -> int:
    """Print failures as they come, and what happened in all."""
    fired: Counter[str] = Counter()
    done = failures = 0
    for outcome in outcomes:
        fired.update(outcome.fired)
        done += 1
        if outcome.failure:
            failures += 1
            print(f"seed {outcome.seed} failed: {outcome.failure}")
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(fired.items()))
    print(f"{done} worlds, {failures} failures; faults that happened: {kinds or 'none'}")
    return 1 if failures else 0


def _replay(plan: Plan) -> int:
    outcome = outcome_of(plan)
    print(plan_json(plan))
    print("\n".join(outcome.story))
    print(f"seed {plan.seed}: {outcome.failure or 'every property holds'}")
    return 1 if outcome.failure else 0


def _read(path: Path) -> Plan:
    try:
        return plan_from_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read the plan {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is not a plan as this command prints one: {error}") from None


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="swift-diloco simulate worlds",
        description="Run the real brains of islands and syncer under a virtual clock with faults, and check every "
        "property. One seed is one world; with one seed its story is printed.",
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many worlds (default: %(default)s)")
    parser.add_argument("--first", "--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--calm", action="store_true", help="no faults")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--plan", type=Path, help="replay a plan that was printed, from a file")
    args = parser.parse_args(argv)
    if not 1 <= args.seeds <= SEEDS_MAX:
        raise UserError(f"--seeds {args.seeds}: expected 1 to {SEEDS_MAX}")
    if not 1 <= args.jobs <= 64:
        raise UserError(f"--jobs {args.jobs}: expected 1 to 64")
    return args
