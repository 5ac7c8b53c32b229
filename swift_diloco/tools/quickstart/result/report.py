"""The result of a quickstart as numbers (`report.json`): built from what was measured, and judged.

It starts and reads nothing. Invariants: `report.json` holds every number that the page shows; `Report.passed` is true
only when every check holds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from swift_diloco.core.files.whole_files import write_whole
from swift_diloco.tools.quickstart.result.figures import TapeFigures
from swift_diloco.tools.quickstart.result.losses import Point, final_loss, first_loss

FORMAT = 1
"""Of report.json; changes when a field changes its meaning or goes."""

LEARNED_FACTOR = 0.9
"""The held-out loss afterwards must be below this share of the loss before: clearly learned, far from noise."""

ALONE_FACTOR = 1.02
"""The islands together may be this much worse than one alone at most; they saw more data and should be better."""


@dataclass(frozen=True)
class IslandResult:
    """What one island did."""

    id: int
    steps: int
    tokens: int
    first_loss: float
    final_loss: float


@dataclass(frozen=True)
class AloneResult:
    """What one island achieved without the others, with as many local steps."""

    steps: int
    final_loss: float
    held_out_loss: float


@dataclass(frozen=True)
class Happened:
    """Something that was done to the run on purpose."""

    time_s: float
    """Since the tape's first event."""
    step: int
    """Local step of the island that was watched."""
    what: str


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Measured:
    """What was measured on the exported models."""

    held_out_loss_before: float
    held_out_loss_after: float
    alone_held_out_loss: float
    final_digests: Mapping[int, str]
    """Per island id."""


@dataclass(frozen=True)
class RunFacts:
    """What was set up: what the report says beside its numbers."""

    parameters: int
    examples: int
    held_out_examples: int
    commands: Mapping[str, Sequence[str]]
    seconds: float
    moments: tuple[Happened, ...] = ()
    """What was done to the run on purpose."""
    chaos: tuple[Check, ...] = ()
    """What must hold besides, because of that."""


@dataclass(frozen=True)
class Report:
    """Everything that `report.json` says."""

    format: int
    passed: bool
    checks: tuple[Check, ...]
    islands: tuple[IslandResult, ...]
    alone: AloneResult
    held_out_loss_before: float
    held_out_loss_after: float
    outer_steps: int
    late_contributions: int
    refused_pushes: int
    bytes_pushed: int
    bytes_fetched: int
    final_digests: dict[str, str]
    parameters: int
    examples: int
    held_out_examples: int
    seconds: float
    commands: dict[str, list[str]]
    moments: tuple[Happened, ...] = ()


def run_checks(measured: Measured, tape: TapeFigures) -> tuple[Check, ...]:
    """What must hold for the run to count as good."""
    before, after, alone = (
        measured.held_out_loss_before,
        measured.held_out_loss_after,
        measured.alone_held_out_loss,
    )
    digests = set(measured.final_digests.values())
    return (
        Check(
            "the islands learned",
            after < LEARNED_FACTOR * before,
            f"held-out loss {after:.4f}, must be below {LEARNED_FACTOR} x {before:.4f} = {LEARNED_FACTOR * before:.4f}",
        ),
        Check(
            "together as good as alone",
            after <= ALONE_FACTOR * alone,
            f"held-out loss {after:.4f}, may be at most {ALONE_FACTOR} x {alone:.4f} = {ALONE_FACTOR * alone:.4f}",
        ),
        Check(
            "one model at the end",
            len(digests) == 1,
            f"{len(measured.final_digests)} exports, {len(digests)} distinct digest{'s' if len(digests) != 1 else ''}",
        ),
        Check("outer steps were taken", tape.outer_steps > 0, f"{tape.outer_steps} commits in the tape"),
    )


def island_result(island: int, points: Sequence[Point], tape: TapeFigures) -> IslandResult:
    """An island's numbers from its own log and the tape."""
    curve = list(points)
    return IslandResult(
        id=island,
        steps=curve[-1].step,
        tokens=tape.tokens_merged(island),
        first_loss=first_loss(curve),
        final_loss=final_loss(curve),
    )


def build_report(
    curves: Mapping[int, Sequence[Point]],
    alone: Sequence[Point],
    tape: TapeFigures,
    measured: Measured,
    facts: RunFacts,
) -> Report:
    """Put the numbers together. `curves` are the islands' losses by island id."""
    checks = run_checks(measured, tape) + facts.chaos
    parts = [part for commit in tape.commits for part in commit.contributions]
    return Report(
        format=FORMAT,
        passed=all(check.passed for check in checks),
        checks=checks,
        islands=tuple(island_result(island, points, tape) for island, points in sorted(curves.items())),
        alone=AloneResult(alone[-1].step, final_loss(list(alone)), measured.alone_held_out_loss),
        held_out_loss_before=measured.held_out_loss_before,
        held_out_loss_after=measured.held_out_loss_after,
        outer_steps=tape.outer_steps,
        late_contributions=sum(part.lag > 0 for part in parts),
        refused_pushes=len(tape.refused),
        bytes_pushed=tape.pushed_bytes,
        bytes_fetched=tape.fetched_bytes,
        final_digests={str(island): digest for island, digest in sorted(measured.final_digests.items())},
        parameters=facts.parameters,
        examples=facts.examples,
        held_out_examples=facts.held_out_examples,
        seconds=round(facts.seconds, 1),
        commands={name: list(argv) for name, argv in facts.commands.items()},
        moments=facts.moments,
    )


def write_json(path: Path, report: Report) -> None:
    """Write `report.json`."""
    write_whole(path, [json.dumps(asdict(report), indent=2, allow_nan=False).encode(), b"\n"])
