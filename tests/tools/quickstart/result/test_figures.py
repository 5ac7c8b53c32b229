"""tape.py: numbers out of a tape, checked against the sample's rule."""

from pathlib import Path

from swift_diloco.tools.quickstart.result.figures import Contribution, parse_tape, read_tape
from tests.tools.quickstart import samples


def test_totals_are_those_of_the_sample() -> None:
    tape = parse_tape(samples.tape_rows())
    assert tape.fragments == 2
    assert tape.outer_steps == 6
    assert tape.pushed_bytes == 6 * 2 * 4096
    assert tape.fetched_bytes == (4 + 12 + 4) * 4096
    assert tape.refused == ["late"]
    assert tape.final_s == 7.0


def test_contributions_are_in_the_order_of_the_islands() -> None:
    fourth = parse_tape(samples.tape_rows()).commits[3]
    assert (fourth.t, fourth.fragment, fourth.version, fourth.time_s) == (4, 1, 4, 4.0)
    assert fourth.contributions == (Contribution(0, 0, 5, 500, 4096), Contribution(1, 1, 5, 600, 4096))


def test_merged_tokens_are_counted_per_fragment_not_over_all() -> None:
    tape = parse_tape(samples.tape_rows())
    assert [tape.tokens_merged(island) for island in (0, 1, 2)] == [3 * 500, 3 * 600, 0]


def test_a_void_commit_is_no_outer_step() -> None:
    tape = parse_tape([samples.commit(1), samples.commit(2, void=True, contributions=[])])
    assert (len(tape.commits), tape.outer_steps) == (2, 1)


def test_commits_that_a_resumed_syncer_took_back_do_not_count() -> None:
    rows = samples.tape_rows()[:-8]
    resumed = {"event": "resumed", "time": samples.BEGIN_S + 7, "t": 4}
    tape = parse_tape([*rows, resumed, samples.commit(5, time=samples.BEGIN_S + 9)])
    assert [(commit.t, commit.time_s) for commit in tape.commits][-2:] == [(4, 4.0), (5, 9.0)]
    assert (tape.resumes, tape.begin, tape.outer_step_at(8.0)) == (1, samples.BEGIN_S, 4)


def test_unknown_events_and_an_absent_file_are_passed_over(tmp_path: Path) -> None:
    assert parse_tape([{"event": "moon", "time": 1.0}, samples.commit(1)]).outer_steps == 1
    assert read_tape(tmp_path / "none.jsonl").commits == []
    samples.write_lines(tmp_path / "tape.jsonl", samples.tape_rows())
    assert read_tape(tmp_path / "tape.jsonl").outer_steps == 6
