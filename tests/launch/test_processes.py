"""The start-up hook in real processes: ms-swift's, and those that are not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swift_diloco.launch.plugins import installed_plugins

pytestmark = [
    pytest.mark.net,
    pytest.mark.skipif("diloco" not in installed_plugins(), reason="this project is not installed (pip install -e .)"),
]

SHOW = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv[1:],
    "environ": {k: v for k, v in os.environ.items() if k.startswith("YETO_DILOCO_")},
    "finders": [type(finder).__name__ for finder in sys.meta_path],
}))
"""
BIN = Path(sys.executable).parent


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    """A file that lies where ms-swift's Megatron trainer does and shows what it was given."""
    script = tmp_path / "swift" / "cli" / "_megatron" / "sft.py"
    script.parent.mkdir(parents=True)
    script.write_text(SHOW)
    return script


def run(*words: str | Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [str(word) for word in words], env={**os.environ, **(environ or {})}, capture_output=True, text=True, timeout=50
    )


def python(*words: str | Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run this interpreter."""
    return run(sys.executable, *words, environ=environ)


def loaded_modules(*words: str | Path, environ: dict[str, str] | None = None) -> list[str]:
    """Names of the modules a Python process imports, as it reports them itself."""
    lines = python("-X", "importtime", *words, environ=environ).stderr.splitlines()
    return [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")]


def test_a_process_that_is_not_ms_swifts_loads_nothing_of_ours() -> None:
    modules = loaded_modules("-c", "pass", "sft", "--plugin", "diloco", "--diloco_nonsense", "1")
    assert "site" in modules
    assert [name for name in modules if "diloco" in name] == []


def test_a_command_line_that_only_mentions_ms_swift_loads_the_smallest_modules() -> None:
    modules = loaded_modules("-c", "pass", "--about", "swift")
    assert [name for name in modules if "diloco" in name] == [
        "swift_diloco", "swift_diloco.launch", "swift_diloco.launch.roles", "swift_diloco.launch.start",
    ]  # fmt: skip
    assert set(modules) - set(loaded_modules("-c", "pass")) == {
        "swift_diloco", "swift_diloco.launch", "swift_diloco.launch.roles", "swift_diloco.launch.start",
    }  # fmt: skip


def test_a_broken_hook_does_not_fail_other_processes(tmp_path: Path) -> None:
    (tmp_path / "swift_diloco").mkdir()
    (tmp_path / "swift_diloco" / "__init__.py").write_text("raise RuntimeError('broken')\n")
    result = python("-c", "print('fine')", "swift", environ={"PYTHONPATH": str(tmp_path)})
    assert (result.returncode, result.stdout, result.stderr) == (0, "fine\n", "")


def test_a_trainer_gets_ms_swifts_words_and_our_settings_as_variables(trainer: Path) -> None:
    result = python(trainer, "--plugin", "diloco", "--diloco_syncer", "embedded", "--lr", "1", "--callbacks", "own")
    seen = json.loads(result.stdout)
    plugin_path = run(BIN / "swift-diloco", "plugin-path").stdout.strip()
    assert seen["argv"] == ["--lr", "1", "--external_plugins", plugin_path, "--callbacks", "own", "diloco"]
    assert seen["environ"] == {"YETO_DILOCO_SYNCER": "embedded"}
    assert "PlatformFinder" not in seen["finders"]


def test_a_trainer_that_asks_nothing_of_us_is_left_alone(trainer: Path) -> None:
    seen = json.loads(python(trainer, "--lr", "1").stdout)
    assert (seen["argv"], seen["environ"]) == (["--lr", "1"], {})


def test_the_cpu_platform_waits_in_the_trainer_and_in_its_helpers(trainer: Path) -> None:
    trainer.write_text(
        "import multiprocessing, sys\n"
        "def finders(_=None): return [type(finder).__name__ for finder in sys.meta_path]\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(finders()[0], pool.map(finders, [0])[0][0])\n"
    )
    result = python(trainer, "--diloco_platform", "cpu")
    assert result.stdout.split() == ["PlatformFinder", "PlatformFinder"], result.stderr


def test_the_switch_leaves_a_trainer_alone(trainer: Path) -> None:
    result = python(trainer, "--plugin", "nosuch", environ={"YETO_DILOCO_HOOK": "off"})
    assert json.loads(result.stdout)["argv"] == ["--plugin", "nosuch"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--plugin nosuch", "--plugin nosuch: no such plugin; installed plugins: diloco (swift-diloco "),
        ("--plugin diloco", "no syncer is given; expected --diloco_syncer tcp://HOST:PORT"),
        ("--diloco_hartbeat_s 3", "unknown setting --diloco_hartbeat_s in the flags; the nearest valid name is "),
        ("--diloco_platform cpu --fp8_format hybrid", "--fp8_format hybrid cannot work on the CPU platform"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2_before_anything_starts(words: str, message: str) -> None:
    result = run(BIN / "megatron", "sft", *words.split())
    assert result.returncode == 2
    assert result.stderr.startswith(f"swift-diloco: error: {message}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == "", "the trainer's command line would have been printed"


def test_rlhf_is_refused_before_anything_starts() -> None:
    result = run(BIN / "swift", "rlhf", "--plugin", "diloco", "--diloco_syncer", "embedded")
    assert (result.returncode, result.stdout) == (2, "")
    assert "does not support `swift rlhf`" in result.stderr


def test_a_mistake_in_a_yaml_file_is_told_too(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("plugin: diloco\ndiloco_syncer: embedded\ndiloco_island: 1\n")
    result = run(BIN / "megatron", "sft", file)
    assert result.returncode == 2
    assert result.stderr.startswith("swift-diloco: error: unknown setting --diloco_island in the flags")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ranks_under_torchrun_are_translated_alike(trainer: Path, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--tee", "1"]
    result = run(*launcher, trainer, "--plugin", "diloco", "--diloco_syncer", "embedded")
    shown = [json.loads(line[line.index("{") :]) for line in result.stdout.splitlines() if "{" in line]
    assert len(shown) == 2, result.stderr
    assert shown[0]["argv"] == shown[1]["argv"]
    assert shown[0]["argv"][2:] == ["--callbacks", "diloco"]
    assert shown[0]["environ"] == {"YETO_DILOCO_SYNCER": "embedded"}
