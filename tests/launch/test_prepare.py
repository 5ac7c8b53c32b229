"""What the hook decides for ms-swift's processes."""

import json
import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.launch import cpu_switch as platform
from swift_diloco.launch import prepare as launch
from swift_diloco.launch.plugins import GROUP
from swift_diloco.launch.prepare import LaunchPlan, check_command, expand_config, make_plan, prepare_trainer
from swift_diloco.launch.roles import COMMAND, INTERNAL_CPU, MEGATRON, SWIFT, TRAINER, Role

PLUGIN_FILE = str(Path(launch.__file__).parent / "entry" / "swift_diloco_plugin.py")
ENTRY = EntryPoint(name="diloco", value="swift_diloco.launch.entry.swift_diloco_plugin", group=GROUP)
SFT = Role(TRAINER, MEGATRON, "sft")
OURS = f"--external_plugins {PLUGIN_FILE} --callbacks diloco".split()


@pytest.fixture(autouse=True)
def one_installed_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests do not depend on how this project is installed."""
    monkeypatch.setattr(launch, "installed_plugins", lambda: {"diloco": ENTRY})


def refused(role: Role, line: str, environ: dict[str, str] | None = None) -> str:
    """The message with which a command line is refused."""
    with pytest.raises(UserError) as caught:
        make_plan(role, line.split(), environ or {})
    return str(caught.value)


def test_flags_become_variables_and_the_plugin_becomes_ms_swifts_words() -> None:
    plan = make_plan(SFT, "--plugin diloco --diloco_syncer embedded --lr 1".split(), {})
    assert plan == LaunchPlan(argv=["--lr", "1", *OURS], environ={"YETO_DILOCO_SYNCER": "embedded"}, cpu=False)


def test_a_flag_replaces_the_variable_of_the_environment() -> None:
    plan = make_plan(SFT, ["--diloco_island_id", "2"], {"YETO_DILOCO_ISLAND_ID": "1"})
    assert plan.environ == {"YETO_DILOCO_ISLAND_ID": "2"}


def test_the_cpu_platform_completes_the_command_line_of_megatron_only() -> None:
    plan = make_plan(SFT, ["--diloco_platform", "cpu"], {})
    assert plan.cpu
    assert plan.argv[: plan.argv.index("--ddp_backend") + 2] == ["--ddp_backend", "gloo"]
    assert plan.environ == {"YETO_DILOCO_PLATFORM": "cpu"}
    assert not make_plan(Role(TRAINER, SWIFT, "sft"), [], {"YETO_DILOCO_PLATFORM": "cpu"}).cpu


def test_the_cpu_platform_may_come_from_a_preset_and_is_handed_on() -> None:
    plan = make_plan(SFT, ["--diloco_preset", "quickstart"], {})
    assert plan.cpu
    assert plan.environ == {"YETO_DILOCO_PRESET": "quickstart", "YETO_DILOCO_PLATFORM": "cpu"}


def test_what_the_cpu_platform_cannot_do_is_refused_before_anything_starts() -> None:
    assert "--attention_backend flash cannot work" in refused(SFT, "--diloco_platform cpu --attention_backend flash")


def test_export_loads_the_plugin_but_has_no_callbacks() -> None:
    plan = make_plan(Role(TRAINER, MEGATRON, "export"), ["--plugin", "diloco"], {})
    assert plan.argv == ["--external_plugins", PLUGIN_FILE]


def test_mistakes_are_refused_with_what_to_do() -> None:
    assert refused(SFT, "--plugin nosuch").startswith("--plugin nosuch: no such plugin; installed plugins: diloco")
    assert refused(SFT, "--plugin diloco").startswith("no syncer is given; expected --diloco_syncer tcp://HOST:PORT")
    assert refused(SFT, "--diloco_iland_id 1").endswith("the nearest valid name is --diloco_island_id")
    assert refused(Role(TRAINER, SWIFT, "rlhf"), "--plugin diloco --diloco_syncer embedded").startswith(
        "plugin diloco does not support `swift rlhf`"
    )
    assert refused(Role(TRAINER, SWIFT, "sft"), "--plugin diloco").startswith("no syncer is given")


def test_a_configuration_file_is_written_out_as_ms_swift_does(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "ENV: {YETO_DILOCO_ISLAND_ID: 3}\nplugin: [diloco, other]\n"
        "diloco_lr_resume: off\nmodel_kwargs: {a: 1}\nlr: null\n"
    )
    words, variables = expand_config([str(file), "--lr", "2"])
    assert words == [
        "--plugin", "diloco", "other", "--diloco_lr_resume", "False", "--model_kwargs", '{"a": 1}', "--lr", "None",
        "--lr", "2",
    ]  # fmt: skip
    assert variables == {"YETO_DILOCO_ISLAND_ID": "3"}


def test_a_json_configuration_file_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"plugin": "diloco"}))
    assert expand_config([str(file)]) == (["--plugin", "diloco"], {})


@pytest.mark.parametrize("text", ["- 1", "a: [", None])
def test_a_file_that_cannot_be_read_is_left_to_ms_swift(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "run.yaml"
    if text is not None:
        file.write_text(text)
    assert expand_config([str(file), "--x"]) == ([str(file), "--x"], {})


def test_the_outer_command_refuses_what_its_configuration_file_says(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("plugin: diloco\ndiloco_synker: embedded\n")
    with pytest.raises(UserError, match="unknown setting --diloco_synker"):
        check_command(Role(COMMAND, MEGATRON, "sft"), [str(file)], {})


def test_the_shell_beats_the_environment_of_a_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("ENV: {YETO_DILOCO_SYNCER: nonsense}\nplugin: diloco\n")
    role = Role(COMMAND, MEGATRON, "sft")
    check_command(role, [str(file)], {"YETO_DILOCO_SYNCER": "embedded"})
    with pytest.raises(UserError, match="--diloco_syncer is 'nonsense'"):
        check_command(role, [str(file)], {})


def test_the_outer_command_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ["/bin/megatron", "sft", "--plugin", "diloco", "--diloco_syncer", "embedded"]
    monkeypatch.setattr(sys, "argv", list(before))
    launch.prepare(Role(COMMAND, MEGATRON, "sft"))
    assert sys.argv == before
    assert "YETO_DILOCO_SYNCER" not in os.environ


def test_a_trainer_that_asks_nothing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["sft.py", "--callbacks", "a", "--external-plugins=x"]
    monkeypatch.setattr(sys, "argv", argv)
    before = dict(os.environ), list(sys.meta_path)
    prepare_trainer(SFT)
    assert argv == ["sft.py", "--callbacks", "a", "--external-plugins=x"]
    assert (dict(os.environ), list(sys.meta_path)) == before


def test_a_trainer_is_translated_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["sft.py", "--plugin", "diloco", "--diloco_syncer", "embedded", "--diloco_platform", "cpu"]
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("YETO_DILOCO_SYNCER", "YETO_DILOCO_PLATFORM", INTERNAL_CPU):
        monkeypatch.setenv(name, "")
    prepare_trainer(SFT)
    assert argv[: len(OURS) + 1] == ["sft.py", *OURS]
    assert [os.environ[name] for name in ("YETO_DILOCO_SYNCER", "YETO_DILOCO_PLATFORM", INTERNAL_CPU)] == [
        "embedded", "cpu", "1",
    ]  # fmt: skip
    assert isinstance(sys.meta_path[0], platform.PlatformFinder)
