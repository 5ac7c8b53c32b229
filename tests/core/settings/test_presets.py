"""Presets: the shipped ones, the reference of all settings, and files of a user's own."""

from pathlib import Path

import msgspec
import pytest
import yaml

from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.island_settings import (
    ISLAND_FIELDS,
    IslandSettings,
    load_island_settings,
)
from swift_diloco.core.settings.presets import find_preset, load_preset, shipped_folder, shipped_names
from swift_diloco.core.settings.syncer_settings import (
    SYNCER_FIELDS,
    SyncerSettings,
    load_syncer_settings,
)

BOTH = [("island", ISLAND_FIELDS), ("syncer", SYNCER_FIELDS)]


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
    shown = {name: [v[k] for k in ("outer_lr", "outer_momentum", "align")] for name, v in chosen.items()}
    assert shown == {
        "pretrain": [0.7, 0.9, "carry"], "finetune": [1.0, 0.0, "carry"], "quickstart": [1.0, 0.0, "carry"],
    }  # fmt: skip


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
