"""Settings of the syncer: its command line and preset, and what a run keeps of them."""

from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.formats.messages import Contract
from swift_diloco.core.settings.syncer_settings import (
    KEPT,
    SYNCER_FIELDS,
    SyncerSettings,
    load_syncer_settings,
    parse_syncer_argv,
)


def test_defaults_need_no_source() -> None:
    assert load_syncer_settings({}) == SyncerSettings()


def test_syncer_flags_beat_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("syncer:\n  min_islands: 2\n  outer_lr: 0.5\n")
    settings = parse_syncer_argv(["--preset", str(file), "--min-islands", "3", "--insecure", "--nesterov", "false"])
    assert settings == SyncerSettings(min_islands=3, outer_lr=0.5, insecure=True, nesterov=False)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--min-island", "2"], "unknown argument --min-island; the nearest valid name is --min-islands"),
        (["--alpha"], "argument --alpha: expected one argument (see swift-diloco-syncer --help)"),
        (["--outer-lr", "fast"], "--outer-lr is 'fast'; expected a number from 0 to 10 (default 1.0)"),
        (["--merge", "sum"], "--merge is 'sum'; expected one of rda, avg (default 'rda')"),
        (["--preset", "pretrian"], "no preset is named 'pretrian', the nearest is pretrain"),
    ],
)
def test_mistakes_on_the_syncers_command_line_are_told(argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_syncer_argv(argv)
    assert str(caught.value).startswith(message)


def test_help_of_the_syncer_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_syncer_argv(["--help"])
    shown = capsys.readouterr().out
    assert caught.value.code == 0
    assert [name for name in SYNCER_FIELDS if f"--{name.replace('_', '-')}" not in shown] == []


def test_a_run_keeps_what_its_islands_share_but_for_what_may_change_while_it_goes_on() -> None:
    assert set(Contract.__struct_fields__) <= set(SYNCER_FIELDS)
    assert set(Contract.__struct_fields__) - set(KEPT) == {"island_lease_s", "min_islands"}
    assert set(KEPT) - set(Contract.__struct_fields__) == {
        *("fragments", "fragmenting", "merge", "weights", "correction", "outer_lr", "outer_momentum", "nesterov"),
    }
