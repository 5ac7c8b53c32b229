"""`swift-diloco audit TAPE`: what the audit found, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from swift_diloco.core.command_line import Parser
from swift_diloco.tools.audit.auditing import audit
from swift_diloco.tools.audit.report import AuditReport, Fate

MEANING = {
    Fate.MERGED: "in the global model",
    Fate.CARRIED: "missed their round, wait for the next",
    Fate.DROPPED: "dropped, with a reason",
    Fate.ROLLED_BACK: "lost with a syncer that died",
    Fate.OPEN: "not decided when the tape ends",
}


def main(words: Sequence[str]) -> int:
    """The command: 0 when every rule holds, 1 when one is broken."""
    parser = Parser(
        prog="swift-diloco audit",
        description="Prove from an event tape that no work was merged twice, and account for every pushed step.",
    )
    parser.add_argument("tape", type=Path, help="the syncer's event tape (tape.jsonl in its run folder)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(list(words))
    report = audit(given.tape)
    print(json.dumps(report.plain()) if given.json else "\n".join(text_of(report)))
    return 0 if report.ok else 1


def text_of(report: AuditReport) -> list[str]:
    """The report for people."""
    lines = [
        f"{report.commits} commits ({report.void} void besides, {report.lost_commits} lost in crashes) "
        f"in {report.lines} lines of {report.runs} run(s)",
        "",
        f"{'':<14}{'pushes':>10}{'steps':>14}{'tokens':>20}",
    ]
    lines.append(_row("pushed", report.pushed.plain()))
    lines += [_row(f"  {fate.value}", report.fates[fate].plain()) + f"   {MEANING[fate]}" for fate in Fate]
    lines.append(_row("merged late", report.late.plain()) + "   of the merged: in a later round than their own")
    lines += ["", "Steps and tokens count once per fragment: a step is pushed with each fragment of the model."]
    lines += [f"  dropped, {total.pushes} pushes: {reason}" for reason, total in report.reasons.items()]
    lines += [
        f"{report.refused} offers were refused before anything was sent.",
        f"{report.discarded} steps were in no push: an install discarded them, or their update was skipped.",
        f"{report.replayed} local steps were done again by restarted islands, as new work.",
    ]
    if times := report.times.plain():
        lines.append(
            f"A round took {times['round_s']:.3g} s (median; at most {times['round_s_max']:.3g} s), "
            f"{times['quorum_s']:.3g} s of them until its quorum and {times['merge_s']:.3g} s for its merge."
        )
    if report.torn:
        lines.append(f"{report.torn} line(s) were torn off by a killed process.")
    if report.ok:
        return [*lines, "OK: no unit of work was merged twice, and every push has one fate."]
    lines.append(f"VIOLATED: {len(report.violations)} time(s)")
    return lines + [f"  {each.text} (lines {', '.join(map(str, each.lines))})" for each in report.violations]


def _row(name: str, total: dict[str, int]) -> str:
    return f"{name:<14}{total['pushes']:>10}{total['steps']:>14}{total['tokens']:>20}"
