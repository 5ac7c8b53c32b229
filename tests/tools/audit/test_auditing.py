"""What the audit proves and how it accounts, on tapes written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from swift_diloco.core.errors import UserError
from swift_diloco.core.formats import tape_lines as lines
from swift_diloco.tools.audit.auditing import audit
from swift_diloco.tools.audit.report import AuditReport, Fate

INIT = lines.Init(run="r", fragments=(), layout="f")


def joined(island: int, step: int = 0) -> lines.Joined:
    return lines.Joined(island=island, generation=f"g{island}", step=step, reason="")


def pushed(push: str, last: int, steps: int, t: int = 1, **changes: Any) -> lines.Pushed:
    """Island 0's push of the steps last − steps + 1 … last, of fragment 0, 10 tokens a step."""
    line = lines.Pushed(
        island=0,
        generation="g0",
        push=push,
        t=t,
        fragment=0,
        base_version=t - 1,
        base_digest=f"d{t - 1}",
        steps=steps,
        tokens=10 * steps,
        capture_step=last,
    )
    return replace(line, **changes)


def part(push: lines.Pushed) -> lines.Contribution:
    return lines.Contribution(
        island=push.island,
        generation=push.generation,
        push=push.push,
        base_version=push.base_version,
        lag=0,
        steps=push.steps,
        tokens=push.tokens,
        weight=1.0,
        bytes=16,
        capture_step=push.capture_step,
    )


def commit(t: int, *pushes: lines.Pushed, void: bool = False, fragment: int = 0) -> lines.Commit:
    return lines.Commit(
        t=t,
        fragment=fragment,
        version=t,
        digest=f"d{t}",
        void=void,
        contributions=tuple(map(part, pushes)),
        offenders=(),
        quorum_s=0.0,
        round_s=0.0,
        merge_s=0.0,
    )


def carried(push: lines.Pushed) -> lines.Carried:
    return lines.Carried(island=0, push=push.push, t=push.t, fragment=0)


def dropped(push: lines.Pushed, reason: str) -> lines.Dropped:
    return lines.Dropped(island=0, push=push.push, t=1, fragment=0, reason=reason)


def resumed(t: int, *carried: str) -> lines.Resumed:
    return lines.Resumed(t=t, run="r", versions=(), carried=carried)


def found(tmp_path: Path, *tape: lines.TapeLine) -> AuditReport:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(b"".join(lines.encode(line, 1.0) for line in tape))
    return audit(path)


def fates(report: AuditReport) -> dict[str, tuple[int, int, int]]:
    return {
        fate.value: (total.pushes, total.steps, total.tokens) for fate, total in report.fates.items() if total.pushes
    }


def test_a_clean_tape_is_ok_and_everything_is_accounted_for(tmp_path: Path) -> None:
    a, b, c, d = pushed("a", 5, 5), pushed("b", 12, 6, t=2), pushed("c", 20, 8, t=3), pushed("d", 24, 4, t=4)
    report = found(
        tmp_path,
        INIT,
        joined(0),
        a,
        commit(1, a),
        b,
        dropped(b, "outer step 2 closed before the push was complete"),
        commit(2, void=True),
        c,
        carried(c),
        d,
    )
    assert report.ok and report.violations == []
    assert fates(report) == {"merged": (1, 5, 50), "dropped": (1, 6, 60), "carried": (1, 8, 80), "open": (1, 4, 40)}
    assert (report.pushed.pushes, report.pushed.steps, report.pushed.tokens) == (4, 23, 230)
    assert list(report.reasons) == ["outer step N closed before the push was complete"]
    assert (report.commits, report.void, report.discarded) == (1, 1, 1)


def test_a_step_that_is_in_a_fragment_twice_is_a_violation_with_its_lines(tmp_path: Path) -> None:
    a, b = pushed("a", 5, 5), pushed("b", 9, 6, t=2)
    report = found(tmp_path, INIT, joined(0), a, commit(1, a), b, commit(2, b))
    (violation,) = report.violations
    assert violation.text == "local step(s) 4 to 5 of island 0 are in fragment 0 twice"
    assert violation.lines == (4, 6)


def test_the_same_step_in_two_fragments_is_none(tmp_path: Path) -> None:
    a, b = pushed("a", 5, 5), pushed("b", 5, 5, t=2, fragment=1)
    assert found(tmp_path, INIT, joined(0), a, commit(1, a), b, commit(2, b, fragment=1)).ok


def test_two_deltas_from_one_anchor_are_a_violation(tmp_path: Path) -> None:
    a, b = pushed("a", 5, 5), pushed("b", 9, 4, t=2, base_version=0, base_digest="d0")
    report = found(tmp_path, INIT, joined(0), a, commit(1, a), b, commit(2, b))
    (violation,) = report.violations
    assert violation.text == "two deltas of island 0 from one anchor (version 0) are in fragment 0"
    assert violation.lines == (4, 6)


def test_a_push_that_is_merged_and_dropped_is_a_violation(tmp_path: Path) -> None:
    a = pushed("a", 5, 5)
    report = found(tmp_path, INIT, joined(0), a, commit(1, a), dropped(a, "late"))
    assert [v.text for v in report.violations] == ["push a of island 0 is dropped, but it was merged before"]


def test_a_merged_push_that_was_never_admitted_is_a_violation(tmp_path: Path) -> None:
    report = found(tmp_path, INIT, joined(0), commit(1, pushed("a", 5, 5)))
    assert [v.text for v in report.violations] == ["outer step 1 merges push a, which was never admitted"]


def test_a_commit_that_tells_of_other_steps_than_were_pushed_is_a_violation(tmp_path: Path) -> None:
    a = pushed("a", 5, 5)
    report = found(tmp_path, INIT, joined(0), a, commit(1, replace(a, tokens=51)))
    assert [v.text for v in report.violations] == ["outer step 1 tells of push a otherwise"]


def test_an_outer_step_that_is_left_out_is_a_violation(tmp_path: Path) -> None:
    report = found(tmp_path, INIT, commit(1, void=True), commit(3, void=True))
    assert [v.text for v in report.violations] == ["outer step 3 is committed where 2 was due"]


def test_commits_after_the_step_a_restart_goes_on_from_are_rolled_back(tmp_path: Path) -> None:
    a, b, c = pushed("a", 5, 5), pushed("b", 9, 4, t=2), pushed("c", 12, 3, t=3)
    again = pushed("again", 14, 9, t=2)
    rows: list[lines.TapeLine] = [INIT, joined(0), a, commit(1, a), b, commit(2, b), c, resumed(1)]
    report = found(tmp_path, *rows, joined(0, 12), again, commit(2, again))
    assert report.ok, report.violations
    assert fates(report) == {"merged": (2, 14, 140), "rolled_back": (2, 7, 70)}
    assert report.lost_commits == 1


def test_a_carried_push_of_the_checkpoint_is_carried_again_after_a_restart(tmp_path: Path) -> None:
    a = pushed("a", 5, 5)
    rows: list[lines.TapeLine] = [INIT, joined(0), a, carried(a), commit(1, void=True), commit(2, a)]
    report = found(tmp_path, *rows, resumed(1, "a"))
    assert report.ok and fates(report) == {"carried": (1, 5, 50)}


def test_going_on_from_a_step_that_was_never_committed_is_a_violation(tmp_path: Path) -> None:
    report = found(tmp_path, INIT, commit(1, void=True), resumed(2))
    assert [v.text for v in report.violations] == ["the syncer went on from outer step 2, which the tape does not have"]


def test_a_tape_that_begins_with_a_restart_goes_on_from_its_step(tmp_path: Path) -> None:
    report = found(tmp_path, resumed(8), commit(9, void=True))
    assert report.ok and report.runs == 1


def test_steps_that_a_restarted_island_does_again_are_replayed_and_new(tmp_path: Path) -> None:
    a, b = pushed("a", 10, 10), pushed("b", 14, 8, t=2)
    report = found(tmp_path, INIT, joined(0), a, commit(1, a), joined(0, 6), b, commit(2, b))
    assert report.ok, report.violations
    assert report.replayed == 4


def test_steps_before_the_restart_belong_to_the_life_that_did_them(tmp_path: Path) -> None:
    a, b = pushed("a", 10, 10), pushed("b", 14, 10, t=2)
    report = found(tmp_path, INIT, joined(0), a, commit(1, a), joined(0, 6), b, commit(2, b))
    assert [v.text for v in report.violations] == ["local step(s) 5 to 6 of island 0 are in fragment 0 twice"]


def test_a_redial_is_no_new_life(tmp_path: Path) -> None:
    a, b = pushed("a", 10, 10), pushed("b", 14, 6, t=2)
    report = found(tmp_path, INIT, joined(0), a, commit(1, a), joined(0, 11), b, commit(2, b))
    assert [v.text for v in report.violations] == ["local step(s) 9 to 10 of island 0 are in fragment 0 twice"]


def test_a_new_run_begins_anew_and_what_was_open_is_lost(tmp_path: Path) -> None:
    a, b, c = pushed("a", 5, 5), pushed("b", 5, 5), pushed("c", 9, 4, t=2)
    report = found(tmp_path, INIT, joined(0), a, commit(1, a), c, INIT, b, commit(1, b))
    assert report.ok and report.runs == 2
    assert fates(report) == {"merged": (2, 10, 100), "rolled_back": (1, 4, 40)}


def test_a_line_torn_off_by_a_killed_process_is_counted_and_passed_over(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    tape.write_bytes(lines.encode(INIT, 1.0) + b'{"event":"com\n' + lines.encode(resumed(0), 2.0))
    report = audit(tape)
    assert report.ok and (report.torn, report.lines) == (1, 3)


def test_a_line_that_the_format_does_not_have_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    tape.write_bytes(lines.encode(INIT, 1.0) + b'{"event":"merged","time":2.0,"push":"a"}\n')
    with pytest.raises(UserError, match="line 2 of the tape"):
        audit(tape)


def test_every_fate_is_in_the_json() -> None:
    assert {fate.value for fate in Fate} <= set(AuditReport().plain())


def test_what_is_no_tape_is_a_users_mistake(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("hello\n")
    with pytest.raises(UserError, match="is no event tape of a syncer"):
        audit(other)
