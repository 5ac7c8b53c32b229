"""The `swift-diloco` command's dispatcher."""

import inspect
import os
import sys
from collections.abc import Sequence

import pytest

from swift_diloco import __version__, cli


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[2:]] == list(cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_of_the_table_has_its_function(name: str) -> None:
    (words,) = inspect.signature(cli.function_of(name), eval_str=True).parameters.values()
    assert words.annotation in (list[str], Sequence[str])


def test_an_unknown_command_is_one_line_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["quikstart"]) == 2
    assert capsys.readouterr().err == (
        "swift-diloco: error: unknown command 'quikstart', the nearest is quickstart; see swift-diloco --help\n"
    )


def test_version_takes_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"swift-diloco {__version__}\n"
    assert cli.main(["version", "x"]) == 2


def test_syncer_becomes_the_syncers_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str]]] = []

    def execv(program: str, argv: list[str]) -> None:
        started.append((program, argv))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(SystemExit):
        cli.main(["syncer", "--min-islands", "2"])
    assert started == [(sys.executable, [sys.executable, "-m", "syncer", "--min-islands", "2"])]
