"""The audit of simulated runs with crashes of everybody: it finds nothing where the checkers, which know the truth,
find nothing."""

from __future__ import annotations

import pytest

from swift_diloco.simulate.worlds.plans import plan_of
from swift_diloco.simulate.worlds.run import Run
from swift_diloco.tools.audit.auditing import Audit
from swift_diloco.tools.audit.report import AuditReport, Fate


def audited(seed: int) -> AuditReport:
    run = Run(plan_of(seed, faults=True, crashes=True))
    run.finish()
    auditing = Audit()
    for number, line in enumerate(run.history.tape, 1):
        auditing.take(number, line)
    return auditing.report()


@pytest.mark.parametrize("first", range(0, 32, 2))
def test_a_rough_world_passes_the_audit_and_every_push_has_a_fate(first: int) -> None:
    for seed in range(first, first + 2):
        report = audited(seed)
        assert report.ok, (seed, report.violations)
        assert report.pushed.pushes == sum(total.pushes for total in report.fates.values()) > 0, seed
        assert report.pushed.tokens == sum(total.tokens for total in report.fates.values()), seed
        assert report.fates[Fate.OPEN].pushes == 0, seed


@pytest.mark.slow
def test_the_worlds_have_everything_the_audit_tells_apart() -> None:
    missing = {"merged", "dropped", "rolled back", "late", "replayed", "lost"}
    for seed in range(200):
        report = audited(seed)
        missing -= {
            what
            for what, count in (
                ("merged", report.fates[Fate.MERGED].pushes),
                ("dropped", report.fates[Fate.DROPPED].pushes),
                ("rolled back", report.fates[Fate.ROLLED_BACK].pushes),
                ("late", report.late.pushes),
                ("replayed", report.replayed),
                ("lost", report.lost_commits),
            )
            if count
        }
        if not missing:
            return
    raise AssertionError(f"200 worlds had nothing that was {sorted(missing)}")
