"""What a syncer refuses before it touches anything: one clear line, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.checkpoint_files import read_newest
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from syncer.brain.memory.snapshot import contract_of
from syncer.checks import check_settings, find_checkpoint
from syncer.cli import main
from syncer.files.store import Store
from tests.syncer.saves import SHAPE, part_of, state_of


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line with which a syncer refuses its command line."""
    assert main(["--bind", "tcp://127.0.0.1:0", *argv]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith("swift-diloco-syncer: error: ")
    return said.err


def save(folder: Path, **settings: object) -> None:
    """A checkpoint of a run with these settings."""
    store = Store(folder, 2)
    state = state_of((1, 2), contract=contract_of(SyncerSettings(**settings)))  # type: ignore[arg-type]
    layout = store.write_shape(SHAPE)
    fragments = [store.write_fragment(name, part_of(name.fragment, name.version)) for name in state.values]
    store.write_manifest(state, layout, (fragments, []))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"min_islands": 3, "expected_islands": 2}, "--min-islands is 3, but --expected-islands is 2"),
        ({"quorum": 3, "expected_islands": 2}, "--quorum is 3, above the number of islands, 2"),
        ({"quorum": 3, "min_islands": 2}, "--quorum is 3, above the number of islands, 2"),
        ({"resume": True}, "--resume needs the folder of the checkpoint: give --checkpoint-path"),
        ({"durable_publish": True}, "--durable-publish needs the folder of the checkpoint"),
        (
            {"durable_publish": True, "background_checkpoint": True, "checkpoint_path": "x"},
            "give --background-checkpoint false with it",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("(", r"\(")):
        check_settings(SyncerSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [{}, {"quorum": 2, "expected_islands": 2}, {"min_islands": 2, "quorum": 2}, {"checkpoint_on_start": True}],
)
def test_settings_that_go_together_are_taken(settings: dict[str, object]) -> None:
    check_settings(SyncerSettings(**settings))  # type: ignore[arg-type]


def test_a_refusal_touches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir, saved = tmp_path / "run", tmp_path / "saved"
    flags = ("--run-dir", str(run_dir), "--checkpoint-path", str(saved))
    assert "--quorum is 5" in refusal(capsys, *flags, "--quorum", "5")
    assert f"{saved} holds no checkpoint of a syncer: there is no such folder" in refusal(capsys, *flags, "--resume")
    assert list(tmp_path.iterdir()) == []


def test_resume_in_a_folder_without_a_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no manifest.json" in refusal(capsys, "--checkpoint-path", str(tmp_path), "--resume")
    assert list(tmp_path.iterdir()) == []


def test_resume_with_damaged_files_is_refused_and_changes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path)
    victim = next(tmp_path.glob("fragment-1-*"))
    victim.write_bytes(victim.read_bytes()[:-1])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    said = refusal(capsys, "--checkpoint-path", str(tmp_path), "--resume")
    assert "no checkpoint in" in said and victim.name in said and "restore a copy, or start anew" in said
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_resume_with_another_contract_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, outer_momentum=0.9, outer_lr=0.7)
    flags = ("--checkpoint-path", str(tmp_path), "--resume", "--outer-momentum", "0.9")
    assert "--outer-lr is 1.0, but the checkpoint's run (run, outer step 2) has 0.7" in refusal(capsys, *flags)


def test_a_new_run_does_not_overwrite_the_checkpoint_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path)
    said = refusal(capsys, "--checkpoint-path", str(tmp_path))
    assert "holds the checkpoint of a run; give --resume to continue it" in said
    assert read_newest(tmp_path).state.step == 2


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    flags = ("--run-dir", str(tmp_path / "run"), "--checkpoint-path", str(tmp_path / "file" / "saved"))
    said = refusal(capsys, *flags)
    assert "cannot write checkpoints to" in said and f"{tmp_path / 'file'} is no folder" in said
    assert not (tmp_path / "run").exists()


def test_the_checkpoint_to_continue_is_found(tmp_path: Path) -> None:
    save(tmp_path)
    settings = SyncerSettings(checkpoint_path=str(tmp_path), resume=True)
    intact = find_checkpoint(settings)
    assert intact is not None and intact.state.step == 2
    assert find_checkpoint(SyncerSettings()) is None
