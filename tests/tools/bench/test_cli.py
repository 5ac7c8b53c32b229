"""`swift-diloco bench`: a bench's options as flags, and mistakes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.tools.bench import cli, merge


def test_the_options_of_a_bench_are_flags_of_the_types_of_their_defaults() -> None:
    found = cli.options_of(merge.MergeOptions, "bench merge", "", ["--repeats", "3"])
    assert found == replace(merge.MergeOptions(), repeats=3)


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
