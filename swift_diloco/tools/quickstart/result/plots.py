"""The four plots of a run: loss, versions, staleness, bytes per round.

It chooses what is drawn from a tape and loss curves; how it is drawn is `svg.py`'s matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from swift_diloco.charts.svg import Chart, Series, smoothed
from swift_diloco.core.formats.tape_lines import Commit
from swift_diloco.tools.quickstart.result.figures import TapeFigures
from swift_diloco.tools.quickstart.result.losses import Point
from swift_diloco.tools.quickstart.result.report import Happened

SMOOTH_STEPS = 10
"""The bold loss curves are means over this many steps; the faint ones behind them are the steps themselves."""


def loss_chart(curves: Mapping[str, Sequence[Point]]) -> Chart:
    """Training loss per job, by local step."""
    series: list[Series] = []
    for colour, (name, points) in enumerate(curves.items()):
        raw = tuple((float(point.step), point.loss) for point in points)
        series.append(Series(name, raw, colour, "faint"))
        series.append(Series(name, smoothed(raw, SMOOTH_STEPS), colour))
    series.sort(key=lambda one: one.kind != "faint")  # the faint curves lie behind the bold ones
    return Chart("plot-loss", "Training loss", "local step", "loss", tuple(series), y_from_zero=False)


def _of_fragment(tape: TapeFigures, fragment: int) -> list[Commit]:
    return [commit for commit in tape.commits if commit.fragment == fragment and not commit.void]


def versions_chart(tape: TapeFigures) -> Chart:
    """The version of each fragment over time: who moves, and whether all keep up."""
    end_s = max([tape.since_begin(commit) for commit in tape.commits] + [tape.final_s or 0.0])
    series = []
    for fragment in range(tape.fragments):
        points = [(0.0, 0.0)]
        points += [(tape.since_begin(commit), float(commit.version)) for commit in _of_fragment(tape, fragment)]
        points.append((end_s, points[-1][1]))
        series.append(Series(f"fragment {fragment}", tuple(points), fragment, "steps"))
    return Chart("plot-versions", "Versions per fragment", "seconds", "version (outer step)", tuple(series))


def staleness_chart(tape: TapeFigures) -> Chart:
    """How old each merged delta's anchor was, in local steps of its island; the tooltip tells the lag in versions."""
    series = []
    for fragment in range(tape.fragments):
        points, notes = [], []
        for commit in _of_fragment(tape, fragment):
            for part in commit.contributions:
                if not part.steps:
                    continue  # the empty answer of an island that has finished
                points.append((float(commit.t), float(part.steps)))
                lag = f"{part.lag} version{'' if part.lag == 1 else 's'} behind"
                notes.append(f"t={commit.t}, fragment {fragment}, island {part.island}: {part.steps} steps, {lag}")
        series.append(Series(f"fragment {fragment}", tuple(points), fragment, "dots", tuple(notes)))
    title = "Staleness: local steps since the merged delta's anchor"
    return Chart("plot-staleness", title, "outer step t", "local steps", tuple(series))


def bytes_chart(tape: TapeFigures) -> Chart:
    """Bytes pushed for and fetched after each outer step; 0 is the first cut, the last bar the final cut."""
    final_x = float(max((commit.t for commit in tape.commits), default=0) + 1)
    pushed = tuple(
        (float(commit.t), float(sum(part.bytes for part in commit.contributions))) for commit in tape.commits
    )
    fetched: dict[float, float] = {}
    for fetch in tape.fetches:
        final = tape.final_s is not None and tape.since_begin(fetch) >= tape.final_s
        x = final_x if final else float(fetch.version)
        fetched[x] = fetched.get(x, 0.0) + fetch.bytes
    series = (Series("pushed", pushed, 0, "bars"), Series("fetched", tuple(sorted(fetched.items())), 1, "bars"))
    return Chart("plot-bytes", "Bytes per round", "outer step t", "bytes", series, y_unit="bytes")


def all_charts(
    curves: Mapping[str, Sequence[Point]], tape: TapeFigures, moments: Sequence[Happened] = ()
) -> tuple[Chart, ...]:
    """The plots of the report, in reading order, with what was done to the run marked in each."""
    by_step = tuple((float(moment.step), moment.what) for moment in moments)
    by_time = tuple((moment.time_s, moment.what) for moment in moments)
    by_t = tuple((float(tape.outer_step_at(moment.time_s)), moment.what) for moment in moments)
    return (
        replace(loss_chart(curves), marks=by_step),
        replace(versions_chart(tape), marks=by_time),
        replace(staleness_chart(tape), marks=by_t),
        replace(bytes_chart(tape), marks=by_t),
    )
