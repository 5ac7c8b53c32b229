"""plots.py: what is drawn, against the sample's rule."""

from msgspec.structs import replace

from swift_diloco.tools.quickstart.result import plots
from swift_diloco.tools.quickstart.result.figures import TapeFigures, parse_tape
from tests.tools.quickstart import samples

TAPE = parse_tape(samples.tape_lines())


def test_versions_rise_at_the_commits_and_reach_the_end() -> None:
    series = {one.name: one.points for one in plots.versions_chart(TAPE).series}
    assert series == {
        "fragment 0": ((0.0, 0.0), (1.0, 1.0), (3.0, 3.0), (5.0, 5.0), (7.0, 5.0)),
        "fragment 1": ((0.0, 0.0), (2.0, 2.0), (4.0, 4.0), (6.0, 6.0), (7.0, 6.0)),
    }


def test_staleness_has_a_point_per_contribution_that_tells_its_lag() -> None:
    second = plots.staleness_chart(TAPE).series[1]
    assert second.points == tuple((float(t), 5.0) for t in (2, 2, 4, 4, 6, 6))
    assert second.notes[3] == "t=4, fragment 1, island 1: 5 steps, 1 version behind"
    assert second.notes[2] == "t=4, fragment 1, island 0: 5 steps, 0 versions behind"


def test_an_empty_answer_is_no_delta_and_has_no_staleness() -> None:
    empty = replace(samples.contribution(1, 1), steps=0, tokens=0)
    rows = [samples.tape_lines()[0], samples.commit(1, contributions=(samples.contribution(0, 1), empty))]
    assert plots.staleness_chart(parse_tape(rows)).series[0].points == ((1.0, 5.0),)


def test_bytes_are_counted_for_their_round_and_the_final_cut_apart() -> None:
    pushed, fetched = plots.bytes_chart(TAPE).series
    assert pushed.points == tuple((float(t), 8192.0) for t in range(1, 7))
    assert fetched.points == ((0.0, 16384.0), *((float(t), 8192.0) for t in range(1, 7)), (7.0, 16384.0))


def test_losses_are_drawn_smoothed_over_their_raw_curve() -> None:
    series = plots.loss_chart({"island 0": samples.points(), "alone": samples.points(begin=6.0)}).series
    assert [(one.name, one.kind) for one in series] == [
        ("island 0", "faint"),
        ("alone", "faint"),
        ("island 0", "line"),
        ("alone", "line"),
    ]
    assert series[0].points[4] == (5.0, 6.6)
    assert round(series[2].points[4][1], 6) == 6.8


def test_a_run_that_took_no_outer_step_can_be_drawn() -> None:
    assert len(plots.all_charts({}, TapeFigures())) == 4
