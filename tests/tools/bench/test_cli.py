"""The benches at tiny sizes: what they print is well formed. Their figures are not looked at."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.tools.bench import brain, cli, link, merge, sync
from swift_diloco.tools.bench.lines import Line, line, say

KEYS = ["name", "value", "unit", "ceiling", "ratio", "target", "better", "met", "load", "details"]


def check(figures: list[Line], *names: str) -> None:
    """Every figure is a measured one."""
    assert [figure.name for figure in figures] == list(names)
    for figure in figures:
        assert figure.value > 0 and figure.ceiling > 0, figure
        assert figure.ratio == pytest.approx(figure.value / figure.ceiling, rel=1e-2), figure


def test_a_line_is_json_with_its_keys_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    say(line("copy", "GB/s", (1.0, 4.0, 0.5), elements=3))
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == KEYS
    assert (shown["ratio"], shown["met"], shown["details"]) == (0.25, False, {"elements": 3})


@pytest.mark.parametrize(("better", "met"), [("higher", False), ("lower", True)])
def test_whether_a_target_is_met_depends_on_its_direction(better: str, met: bool) -> None:
    assert line("x", "s", (1.0, 4.0, 0.5), better).met is met  # type: ignore[arg-type]


def test_merge_measures_a_merge_and_a_copy() -> None:
    check(merge.run(merge.Options(elements=4096, repeats=1, threads=1)), "merge_rda4_nesterov")


@pytest.mark.net
def test_brain_measures_in_a_process_of_its_own() -> None:
    (figure,) = brain.run(brain.Options(islands=3, fragments=2, rounds=4))
    check([figure], "brain_events")
    assert figure.details["events"] == 4 * (3 * 4 + 1)


@pytest.mark.net
def test_link_measures_pushes_and_fetches_beside_raw_messages() -> None:
    figures = link.run(link.Options(mebibytes=2, repeats=2))
    check(figures, "link_push", "link_fetch")
    assert all(len(figure.details["each"]) == len(figure.details["raw"]) == 2 for figure in figures)  # type: ignore[arg-type]


@pytest.mark.net
def test_sync_measures_every_sync_of_both_islands() -> None:
    (figure,) = sync.run(sync.Options(parameters=40_000, fragments=2, syncs=2, warm_syncs=1, step_ms=1.0))
    check([figure], "sync_blocked")
    assert len(figure.details["each"]) == 2 * 2  # type: ignore[arg-type]


def test_the_options_of_a_bench_are_flags_of_the_types_of_their_defaults() -> None:
    found = cli.options_of(merge.Options, "bench merge", "", ["--repeats", "3"])
    assert found == replace(merge.Options(), repeats=3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["marge"], "nearest is merge"),
        (["--repeats", "3"], "belongs to one bench"),
        (["merge", "--repeats", "0"], "--repeats is 0"),
        (["merge", "--repeats", "many"], "--repeats"),
        (["merge", "--repeat", "3"], "--repeat"),
    ],
)
def test_a_mistake_is_one_line_of_a_user_error(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        cli.main(words)


def test_help_names_every_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.BENCHES)
