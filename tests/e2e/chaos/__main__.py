"""`python -m tests.e2e.chaos --scenarios N --seed S --json`: run scenarios; what failed, what kills cost."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.e2e.chaos.checks import check
from tests.e2e.chaos.figures import Cost, costs, summary
from tests.e2e.chaos.processes import RECONNECT_GRACE_S
from tests.e2e.chaos.scenario import Fault, Scenario, draw, draw_kill
from tests.e2e.chaos.world import RunFailed, World
from tests.forkserver.forkserver import ForkServer

COMPARED = Scenario(
    steps=160,
    step_s=0.05,
    save_every=20,
    faults=(Fault(1, "kill", "step", after=75, away_s=2.0),),
)
"""One kill near the middle of a run, 15 steps after a checkpoint; the process is back after 2 s."""


def run(scenario: Scenario, folder: Path, server: ForkServer, *, restart_everything: bool = False) -> World:
    """Run and check one scenario. Raises `RunFailed`."""
    world = World(scenario, folder, server, restart_everything=restart_everything)
    world.run()
    check(world)
    return world


def compare(folder: Path, server: ForkServer) -> dict[str, float]:
    """Wall time (s) of one run: undisturbed, with a kill, and with a kill that everybody pays for."""
    calm = msgspec.structs.replace(COMPARED, faults=())
    return {
        "undisturbed": run(calm, folder / "undisturbed", server).wall_s,
        "killed": run(COMPARED, folder / "killed", server).wall_s,
        "restart_everything": run(COMPARED, folder / "everything", server, restart_everything=True).wall_s,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 0: every scenario passed."""
    options = _parse(argv)
    say = (lambda *words: print(*words, file=sys.stderr, flush=True)) if options.json else print
    failed: list[int] = []
    all_costs: list[Cost] = []
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch, ForkServer(Path(scratch) / "forks", "fake") as server:
        out = Path(options.out or scratch)
        for scenario in _scenarios(options):
            text = msgspec.json.encode(scenario).decode()
            try:
                world = run(scenario, out / f"seed-{scenario.seed}", server)
            except RunFailed as failure:
                failed.append(scenario.seed)
                say(f"FAILED seed {scenario.seed}: {failure}\nagain: --replay '{text}'")
                continue
            all_costs += costs(world)
            say(f"ok seed {scenario.seed} in {world.wall_s:.1f} s: {', '.join(map(str, scenario.faults)) or 'calm'}")
        if options.compare:
            figures["wall_s"] = {name: round(s, 2) for name, s in compare(out / "compared", server).items()}
    count = len(_scenarios(options))
    figures |= {"per_kill": summary(all_costs), "reconnect_grace_s": RECONNECT_GRACE_S}
    result = {"scenarios": count, "passed": count - len(failed), "failed_seeds": failed, "figures": figures}
    print(json.dumps(result))
    return 1 if failed else 0


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    if options.replay:
        return [msgspec.json.decode(options.replay, type=Scenario)]
    seeds = range(options.seed, options.seed + options.scenarios)
    if options.one_kill:
        return [draw_kill(seed) for seed in seeds]
    return [draw(seed, syncer_faults=not options.islands_only) for seed in seeds]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.chaos", allow_abbrev=False)
    parser.add_argument("--scenarios", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first scenario; the others count on from it")
    parser.add_argument("--replay", default="", metavar="JSON", help="one scenario as it was printed")
    parser.add_argument("--islands-only", action="store_true", help="the syncer is left alone")
    parser.add_argument("--one-kill", action="store_true", help="one kill -9 of an island each, for the figures")
    parser.add_argument("--compare", action="store_true", help="measure the wall time against other ways")
    parser.add_argument("--out", default="", help="folder that keeps logs, tapes and checkpoints; must be new")
    parser.add_argument("--json", action="store_true", help="only the last line goes to stdout")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
