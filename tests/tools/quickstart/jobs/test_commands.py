"""commands.py: what is run."""

import shlex
import sys
from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.presets import load_preset
from swift_diloco.core.settings.syncer_settings import parse_syncer_argv
from swift_diloco.tools.quickstart.folder import QuickstartFolder
from swift_diloco.tools.quickstart.jobs import commands
from swift_diloco.tools.quickstart.jobs.commands import TrainingRecipe

FOLDER = QuickstartFolder(Path("/run"))
RECIPE = TrainingRecipe(steps=40, islands=3)


@pytest.fixture(autouse=True)
def megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "trainer_program", lambda trainer: f"/bin/{trainer}")


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    words = argv[2:]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_island_zero_starts_the_syncer_and_the_others_are_given_its_address() -> None:
    first = flags(commands.island_command(FOLDER, RECIPE, 0, "embedded").argv)
    assert first["--plugin"] == "diloco"
    assert first["--diloco_syncer"] == "embedded"
    assert load_preset(first["--diloco_preset"]).island["platform"] == "cpu"
    assert first["--diloco_run_dir"] == "/run/syncer"
    other = flags(commands.island_command(FOLDER, RECIPE, 2, "tcp://127.0.0.1:5").argv)
    assert (other["--diloco_island_id"], other["--diloco_syncer"]) == ("2", "tcp://127.0.0.1:5")
    assert other["--dataset"] == "/run/data/island-2.jsonl"
    assert not {"--diloco_run_dir", "--diloco_syncer_args"} & set(other)


def test_the_syncer_understands_its_arguments() -> None:
    settings = parse_syncer_argv(["--preset", commands.PRESET, *shlex.split(commands.syncer_arguments(RECIPE))])
    assert settings.bind == "tcp://127.0.0.1:0"
    assert settings.expected_islands == settings.min_islands == settings.quorum == 3
    assert (settings.sync_every_steps, settings.fragments) == (RECIPE.sync_every_steps, RECIPE.fragments)
    assert (settings.outer_lr, settings.outer_momentum, settings.align) == (1.0, 0.0, "carry")


def test_a_run_with_chaos_saves_often_and_its_island_goes_on_from_a_checkpoint() -> None:
    recipe = TrainingRecipe(steps=240, chaos=True)
    first = flags(commands.island_command(FOLDER, recipe, 1, "tcp://127.0.0.1:5").argv)
    assert (first["--save_steps"], first["--diloco_save_anchors"]) == ("20", "true")
    assert "--no_save_optim" not in first
    command = commands.resumed_command(FOLDER, recipe, 1, "tcp://127.0.0.1:5", Path("/run/island-1/checkpoint-80"))
    again = flags(command.argv)
    changed = {name for name in again.keys() | first.keys() if again.get(name) != first.get(name)}
    assert changed == {"--mcore_model", "--finetune"}
    assert (again["--mcore_model"], again["--finetune"]) == ("/run/island-1/checkpoint-80", "false")
    assert (command.name, command.log.name) == ("island-1", "island-1-again.log")


def test_a_syncer_that_is_to_be_killed_saves_often_and_does_not_need_every_island() -> None:
    words = commands.syncer_arguments(TrainingRecipe(steps=240, chaos=True))
    settings = parse_syncer_argv(["--preset", commands.PRESET, "--checkpoint-path", "c", *shlex.split(words)])
    assert (settings.min_islands, settings.expected_islands, settings.checkpoint_every) == (1, 2, 4)


def test_the_island_alone_differs_only_in_the_plugin_and_the_output() -> None:
    island = flags(commands.island_command(FOLDER, RECIPE, 0, "embedded").argv)
    alone = flags(commands.alone_command(FOLDER, RECIPE).argv)
    differing = {name for name in island.keys() | alone.keys() if island.get(name) != alone.get(name)}
    assert {name for name in differing if not name.startswith("--diloco_")} == {"--plugin", "--output_dir"}
    assert alone["--train_iters"] == "40"


def test_the_transformers_trainer_gets_its_own_names_of_the_same_recipe() -> None:
    recipe = TrainingRecipe(steps=40, islands=3, trainer="swift")
    command = commands.island_command(FOLDER, recipe, 0, "embedded")
    island = flags(command.argv)
    assert command.argv[:2] == ("/bin/swift", "sft")
    assert (island["--max_steps"], island["--save_steps"], island["--use_cpu"]) == ("40", "40", "true")
    assert island["--per_device_train_batch_size"] == str(recipe.batch)
    assert island["--learning_rate"] == str(recipe.learning_rate)
    assert "NPROC_PER_NODE" not in command.variables and "YETO_DILOCO_PLATFORM" not in command.variables
    alone = flags(commands.alone_command(FOLDER, recipe).argv)
    differing = {name for name in island.keys() | alone.keys() if island.get(name) != alone.get(name)}
    assert {name for name in differing if not name.startswith("--diloco_")} == {"--plugin", "--output_dir"}


def test_a_surrounding_job_is_not_inherited() -> None:
    environ = {"PATH": "/bin", "RANK": "3", "WORLD_SIZE": "8", "YETO_DILOCO_HEARTBEAT_S": "1"}
    assert commands.inherited(environ) == {"PATH": "/bin"}


def test_every_job_gets_a_port_of_its_own_and_the_cpu() -> None:
    one, other = commands.job_variables("megatron"), commands.job_variables("megatron")
    assert one["YETO_DILOCO_PLATFORM"] == "cpu" and one["HF_HUB_OFFLINE"] == "1"
    assert one["MASTER_PORT"] != other["MASTER_PORT"]


def test_a_missing_trainer_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"pip install 'swift-diloco\[cpu\]'"):
        commands.trainer_program("megatron")
