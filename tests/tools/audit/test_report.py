"""The report of an audit: how long rounds took."""

from __future__ import annotations

from msgspec.structs import replace

from swift_diloco.tools.audit.report import AuditReport, RoundTimes
from tests.tools.audit.test_auditing import commit


def test_round_times_are_medians_and_the_longest_round() -> None:
    times = RoundTimes()
    for quorum_s, round_s, merge_s in ((1.0, 4.0, 0.25), (2.0, 9.5, 0.5), (9.0, 5.0, 0.125)):
        times.add(replace(commit(1), quorum_s=quorum_s, round_s=round_s, merge_s=merge_s))
    assert times.plain() == {"quorum_s": 2.0, "round_s": 5.0, "merge_s": 0.25, "round_s_max": 9.5}


def test_without_a_round_there_are_no_times() -> None:
    assert AuditReport().plain()["round_times"] == {}
