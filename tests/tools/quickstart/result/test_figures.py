"""tape.py: numbers out of a tape, checked against the sample's rule."""

from pathlib import Path

import pytest

from swift_diloco.core.formats.tape_lines import FORMAT, Opened, TapeError
from swift_diloco.tools.quickstart.result.figures import parse_tape, read_tape
from tests.tools.quickstart import samples


def test_totals_are_those_of_the_sample() -> None:
    tape = parse_tape(samples.tape_lines())
    assert tape.fragments == 2
    assert tape.outer_steps == 6
    assert tape.pushed_bytes == 6 * 2 * 4096
    assert tape.fetched_bytes == (4 + 12 + 4) * 4096
    assert tape.refused == ["late"]
    assert tape.final_s == 7.0


def test_contributions_are_in_the_order_of_the_islands() -> None:
    fourth = parse_tape(samples.tape_lines()).commits[3]
    assert (fourth.t, fourth.fragment, fourth.version, fourth.time) == (4, 1, 4, samples.BEGIN_S + 4)
    assert fourth.contributions == (samples.contribution(0, 4), samples.contribution(1, 4, lag=1))


def test_merged_tokens_are_counted_per_fragment_not_over_all() -> None:
    tape = parse_tape(samples.tape_lines())
    assert [tape.tokens_merged(island) for island in (0, 1, 2)] == [3 * 500, 3 * 600, 0]


def test_a_void_commit_is_no_outer_step() -> None:
    tape = parse_tape([samples.commit(1), samples.commit(2, void=True, contributions=())])
    assert (len(tape.commits), tape.outer_steps) == (2, 1)


def test_commits_that_a_resumed_syncer_took_back_do_not_count() -> None:
    rows = samples.tape_lines()[:-8]
    tape = parse_tape([*rows, samples.resumed(7, 4), samples.commit(5, time=samples.BEGIN_S + 9)])
    assert [(commit.t, tape.since_begin(commit)) for commit in tape.commits][-2:] == [(4, 4.0), (5, 9.0)]
    assert (tape.resumes, tape.begin, tape.outer_step_at(8.0)) == (1, samples.BEGIN_S, 4)


def test_an_absent_file_is_an_empty_tape_and_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    assert read_tape(tmp_path / "none.jsonl").commits == []
    samples.write_tape(tmp_path / "tape.jsonl")
    with (tmp_path / "tape.jsonl").open("ab") as file:
        file.write(b'{"event":"com')
    assert read_tape(tmp_path / "tape.jsonl").outer_steps == 6


def test_an_unknown_event_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tape.jsonl").write_bytes(b'{"event":"moon","time":1.0}\n')
    with pytest.raises(TapeError, match="line 1 of the tape .event 'moon'."):
        read_tape(tmp_path / "tape.jsonl")


def test_time_begins_with_the_first_event_of_the_run_not_with_the_process() -> None:
    opened = Opened(time=samples.BEGIN_S - 60, format=FORMAT)
    assert parse_tape([opened, *samples.tape_lines()]).begin == samples.BEGIN_S
