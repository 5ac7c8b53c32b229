"""Settings: precedence, refusals, the reference file and the shipped presets."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.island_settings import (
    ISLAND_FIELDS,
    IslandSettings,
    load_island_settings,
    require_syncer,
)
from swift_diloco.core.settings.presets import Preset, find_preset, load_preset, shipped_folder, shipped_names
from swift_diloco.core.settings.schema import Field, Value
from swift_diloco.core.settings.syncer_settings import (
    SYNCER_FIELDS,
    SyncerSettings,
    load_syncer_settings,
    parse_syncer_argv,
)

BOTH = [("island", ISLAND_FIELDS), ("syncer", SYNCER_FIELDS)]


def refused(*, flags: dict[str, str] | None = None, environ: dict[str, str] | None = None, preset: Preset) -> str:
    """The message with which island settings are refused."""
    with pytest.raises(UserError) as caught:
        load_island_settings(flags or {}, environ or {}, preset)
    return str(caught.value)


def test_defaults_need_no_source() -> None:
    assert load_island_settings({}, {}) == IslandSettings()
    assert load_syncer_settings({}) == SyncerSettings()


def test_flag_beats_environment_beats_preset_beats_default() -> None:
    preset = Preset(source="p", island={"heartbeat_s": 1, "connect_timeout_s": 1, "init_probe_s": 1})
    environ = {"YETO_DILOCO_HEARTBEAT_S": "2", "YETO_DILOCO_CONNECT_TIMEOUT_S": "2"}
    settings = load_island_settings({"heartbeat_s": "3"}, environ, preset)
    assert settings == IslandSettings(heartbeat_s=3.0, connect_timeout_s=2.0, init_probe_s=1.0)


def test_preset_named_by_flag_or_environment_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("island:\n  island_id: 4\n")
    by_flag = load_island_settings({"preset": str(file)}, {"YETO_DILOCO_PRESET": "pretrain"})
    by_environment = load_island_settings({}, {"YETO_DILOCO_PRESET": str(file)})
    assert by_flag == IslandSettings(island_id=4, preset=str(file))
    assert by_environment == by_flag


def test_unknown_names_are_refused_with_the_nearest_valid_name() -> None:
    no_preset = Preset()
    assert refused(flags={"heartbeats": "1"}, preset=no_preset) == (
        "unknown setting --diloco_heartbeats in the flags; the nearest valid name is --diloco_heartbeat_s"
    )
    assert refused(environ={"YETO_DILOCO_SYNCR": "x"}, preset=no_preset) == (
        "unknown setting YETO_DILOCO_SYNCR in the environment; the nearest valid name is YETO_DILOCO_SYNCER"
    )
    assert refused(preset=Preset(source="my{}.yaml", island={"islandid": 1})) == (
        "unknown setting island.islandid in my{}.yaml; the nearest valid name is island.island_id"
    )


def test_bad_value_names_setting_value_and_what_is_expected() -> None:
    message = refused(environ={"YETO_DILOCO_HEARTBEAT_S": "often"}, preset=Preset())
    assert message == "YETO_DILOCO_HEARTBEAT_S is 'often'; expected a number of at least 0 (s) (default 30.0)"
    message = refused(flags={"platform": "tpu"}, preset=Preset())
    assert message == "--diloco_platform is 'tpu'; expected one of auto, cpu (default 'auto')"
    message = refused(preset=Preset(source="p.yaml", island={"island_id": -1}))
    assert message == "island.island_id of p.yaml is -1; expected a whole number from 0 to 9999 (default 0)"


@pytest.mark.parametrize("raw", ["nan", "inf", "-1", "", "1,5", "true"])
def test_numbers_are_finite_and_within_bounds(raw: str) -> None:
    assert "--diloco_init_probe_s" in refused(flags={"init_probe_s": raw}, preset=Preset())


def test_a_fraction_is_no_whole_number() -> None:
    with pytest.raises(UserError, match="syncer.min_islands of p is 1.5; expected a whole number"):
        load_syncer_settings({}, Preset(source="p", syncer={"min_islands": 1.5}))


def test_a_weak_source_is_checked_even_where_a_stronger_one_wins() -> None:
    assert "YETO_DILOCO_ISLAND_ID is 'x'" in refused(
        flags={"island_id": "1"}, environ={"YETO_DILOCO_ISLAND_ID": "x"}, preset=Preset()
    )


@pytest.mark.parametrize(
    ("raw", "value"), [(False, "off"), (True, "on"), ("False", "off"), ("off", "off"), ("ON", "on")]
)
def test_yaml_truth_values_are_on_and_off(raw: Value, value: str) -> None:
    settings = load_island_settings({}, {}, Preset(source="p", island={"lr_resume": raw}))
    assert settings.lr_resume == value


def test_internal_variables_and_empty_ones_are_no_settings() -> None:
    environ = {"YETO_DILOCO_INTERNAL_CPU": "1", "YETO_DILOCO_HOOK": "off", "YETO_DILOCO_SYNCER": "", "PATH": "x"}
    assert load_island_settings({}, environ) == IslandSettings()


@pytest.mark.parametrize("address", ["embedded", "tcp://10.0.0.1:29410", "tcp://[::1]:5"])
def test_a_syncer_address_is_accepted(address: str) -> None:
    assert require_syncer(IslandSettings(syncer=address)) == address


@pytest.mark.parametrize("address", ["", "host:29410", "tcp://host", "tcp://host:port", "embeded"])
def test_a_run_without_a_usable_syncer_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="expected --diloco_syncer tcp://HOST:PORT"):
        require_syncer(IslandSettings(syncer=address))


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


@pytest.mark.parametrize(("section", "field"), [(s, f) for s, fields in BOTH for f in fields.values()])
def test_a_setting_that_does_nothing_yet_is_refused_not_ignored(section: str, field: Field) -> None:
    if field.kind is bool:
        other: Value = not field.default
    elif field.choices:
        other = field.choices[-1] if field.choices[-1] != field.default else field.choices[0]
    else:
        other = "x" if field.kind is str else field.info.minimum or 0
    preset = Preset(source="p", **{section: {field.name: other}})
    if field.info.available or other == field.default:
        load_island_settings({}, {}, preset)
        load_syncer_settings({}, preset)
    else:
        with pytest.raises(UserError, match="is not available yet"):
            load_island_settings({}, {}, preset)
            load_syncer_settings({}, preset)


def test_the_reference_lists_every_setting_with_its_default_and_one_comment() -> None:
    path = shipped_folder() / "reference.yaml"
    content = yaml.safe_load(path.read_text())
    lines = path.read_text().splitlines()
    for section, fields in BOTH:
        assert {name: field.default for name, field in fields.items()} == content[section]
        assert list(content[section]) == list(fields), "the order is that of the schema"
    described = [*ISLAND_FIELDS.values(), *SYNCER_FIELDS.values()]
    values = [
        number for number, line in enumerate(lines) if line.startswith("  ") and not line.lstrip().startswith("#")
    ]
    assert len(values) == len(described)
    for number, field in zip(values, described, strict=True):
        assert lines[number].startswith(f"  {field.name}: ")
        comment = lines[number - 1].removeprefix("  # ")
        assert field.info.help.lower() in comment.lower(), f"comment of {field.name} is not its help text"
        assert ("not available yet" in comment) == (not field.info.available)


def test_the_reference_as_a_preset_changes_nothing() -> None:
    preset = load_preset("reference")
    assert load_island_settings({}, {}, preset) == IslandSettings()
    assert load_syncer_settings({}, preset) == SyncerSettings()


def test_shipped_presets_are_valid_and_say_what_the_rules_say() -> None:
    assert shipped_names() == ["finetune", "pretrain", "quickstart", "reference"]
    for name in shipped_names():
        load_island_settings({"preset": name}, {})
    chosen = {
        name: msgspec.structs.asdict(load_syncer_settings({}, name)) for name in ("pretrain", "finetune", "quickstart")
    }
    shown = {name: [v[k] for k in ("outer_lr", "outer_momentum", "align", "alpha")] for name, v in chosen.items()}
    assert shown["pretrain"] == [0.7, 0.9, "blend", 0.5]
    assert shown["finetune"][:3] == [1.0, 0.0, "overwrite"]
    assert shown["quickstart"][:3] == [1.0, 0.0, "overwrite"]


def test_a_name_is_a_shipped_preset_and_a_path_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pretrain").write_text("island: {}\n")
    (tmp_path / "own.yaml").write_text("island: {}\n")
    assert find_preset("pretrain") == shipped_folder() / "pretrain.yaml"
    assert find_preset("pretrain.yaml") == shipped_folder() / "pretrain.yaml"
    assert find_preset("own.yaml") == Path("own.yaml")
    with pytest.raises(UserError, match=r"preset file \./none.yaml does not exist"):
        find_preset("./none.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "must be a mapping with the sections island: and syncer:"),
        ("iland: {}\n", "has a section iland:; expected island: or syncer: (nearest: island:)"),
        ("island: 3\n", "must be a mapping of settings to values"),
        ("island: {island_id: [1]}\n", "island.island_id of preset"),
        ("island: {island_id: null}\n", "is None; expected one plain value"),
        ("a: [\n", "cannot be read as YAML"),
    ],
)
def test_a_malformed_preset_is_refused_with_its_fault(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        load_preset(str(file))
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.net
def test_importing_the_settings_brings_in_nothing_heavy() -> None:
    names = "swift_diloco.core.settings.island_settings, swift_diloco.core.settings.syncer_settings"
    code = f"import sys, {names}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "msgspec" in loaded
    assert not {"numpy", "torch", "zmq", "numba", "swift", "transformers"} & set(loaded)
