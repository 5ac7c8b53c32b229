"""The syncer as a sibling process: started once, found again, told to stop, never an orphan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.run_folder import living_address, living_pid
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.trainers.embedded.process import (
    EmbeddedSyncer,
    checkpoint_flags,
    syncer_environment,
    syncer_words,
)

SETTINGS = msgspec.convert({"syncer_args": "--bind tcp://127.0.0.1:0 --min-islands 2"}, IslandSettings)

START_AND_DIE = """
import os, signal, sys
from pathlib import Path
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.trainers.embedded.process import EmbeddedSyncer
syncer = EmbeddedSyncer(Path(sys.argv[1]), IslandSettings(syncer_args="--bind tcp://127.0.0.1:0"))
print(syncer.start_or_find(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def syncer(run_dir: Path) -> Iterator[EmbeddedSyncer]:
    """The syncer of the run folder; none is left behind."""
    syncer = EmbeddedSyncer(run_dir, SETTINGS)
    yield syncer
    assert syncer.stop()


def test_environment_of_a_rank_stays_with_the_rank() -> None:
    environ = {
        "PATH": "/bin",
        "RANK": "0",
        "MASTER_PORT": "29500",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TORCHELASTIC_RUN_ID": "x",
        "YETO_DILOCO_PLATFORM": "cpu",
    }
    assert syncer_environment(environ) == {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "",
        "YETO_DILOCO_HOOK": "off",
        "PYTHONUNBUFFERED": "1",
    }


def test_command_line_has_the_preset_the_users_flags_and_the_run_folder() -> None:
    settings = IslandSettings(preset="finetune", syncer_args="--tape 'a b.jsonl'")
    assert syncer_words(Path("/run"), settings) == [
        *("--preset", "finetune", "--tape", "a b.jsonl", "--embedded", "--run-dir", "/run"),
        *("--checkpoint-path", "/run/checkpoint"),
    ]


@pytest.mark.parametrize(
    "words",
    [
        "--checkpoint-path {}",
        "--checkpoint-path={}",
        "--checkpoint-path elsewhere --checkpoint-path {}",
        "--bind=b",
        "",
    ],
)
def test_a_syncer_started_again_goes_on_from_the_checkpoint_of_its_run_folder(tmp_path: Path, words: str) -> None:
    said = "checkpoint" in words
    folder = tmp_path / "own" if said else tmp_path / "checkpoint"
    given = words.format(folder).split()
    own = [] if said else ["--checkpoint-path", str(folder)]
    assert checkpoint_flags(tmp_path, given) == own
    folder.mkdir()
    assert checkpoint_flags(tmp_path, given) == own
    (folder / "manifest.json").write_text("{}")
    assert checkpoint_flags(tmp_path, given) == [*own, "--resume"]
    for word in ("--resume", "--resume=false"):
        assert checkpoint_flags(tmp_path, [*given, word]) == own


def test_a_preset_may_say_where_the_checkpoint_lies(tmp_path: Path) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text(f"syncer:\n  checkpoint_path: {tmp_path / 'own'}\n")
    assert checkpoint_flags(tmp_path, ["--preset", str(preset)]) == []


def test_stopping_where_no_syncer_lives_is_done_at_once(tmp_path: Path) -> None:
    assert EmbeddedSyncer(tmp_path / "nowhere", SETTINGS).stop()


@pytest.mark.net
def test_syncer_is_started_once_found_again_and_stopped(run_dir: Path, syncer: EmbeddedSyncer) -> None:
    address = syncer.start_or_find()
    pid = living_pid(run_dir)
    assert pid is not None and pid != os.getpid() and os.getsid(pid) == pid
    assert EmbeddedSyncer(run_dir, SETTINGS).start_or_find() == address == living_address(run_dir)
    assert living_pid(run_dir) == pid
    assert syncer.stop()
    assert not syncer.lives() and not (run_dir / "address.json").exists()
    assert "told to stop" in (run_dir / "syncer.log").read_text()


@pytest.mark.net
def test_syncer_outlives_a_crash_of_its_island_and_ignores_the_terminal(run_dir: Path, syncer: EmbeddedSyncer) -> None:
    crashed = subprocess.run([sys.executable, "-c", START_AND_DIE, str(run_dir)], capture_output=True, text=True)
    assert crashed.returncode == -signal.SIGKILL
    pid = living_pid(run_dir)
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGHUP)
    assert syncer.start_or_find() == crashed.stdout.strip()
    assert living_pid(run_dir) == pid


@pytest.mark.net
def test_mistake_in_the_syncers_flags_is_told_with_its_own_line(run_dir: Path) -> None:
    settings = IslandSettings(syncer_args="--min-island 2")
    with pytest.raises(UserError, match="the nearest valid name is --min-islands"):
        EmbeddedSyncer(run_dir, settings).start_or_find()


@pytest.mark.net
def test_port_in_use_is_one_line_for_the_user(syncer: EmbeddedSyncer, tmp_path: Path) -> None:
    address = syncer.start_or_find()
    late = EmbeddedSyncer(tmp_path / "other", IslandSettings(syncer_args=f"--bind {address}"))
    with pytest.raises(UserError, match=f"{address} is in use by another process"):
        late.start_or_find()
    assert late.stop()


@pytest.mark.net
def test_module_called_syncer_in_the_working_folder_is_not_taken(
    run_dir: Path, syncer: EmbeddedSyncer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "syncer.py").write_text("raise SystemExit('the wrong syncer')\n")
    monkeypatch.chdir(tmp_path)
    assert syncer.start_or_find() == living_address(run_dir)
