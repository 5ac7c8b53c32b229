"""`swift-diloco inspect`: what it shows of a record, and each mistake in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swift_diloco import cli
from swift_diloco.island.files.record_files import RECORD_FILE
from tests.island.files.test_record import LAYOUT, save


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-8"
    folder.mkdir()
    save(folder, 2, 2.5)
    return folder


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["inspect", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["inspect", *words]) == 2
    text = capsys.readouterr()
    assert text.out == ""
    (line,) = text.err.splitlines()
    assert line.startswith("swift-diloco: error: ")
    return line.removeprefix("swift-diloco: error: ")


def test_record_is_shown_for_people(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = sum(path.stat().st_size for path in checkpoint.glob("diloco_anchors*"))
    assert shown(capsys, str(checkpoint)) == (
        f"checkpoint  {checkpoint}\n"
        "iteration   8\n"
        "island      0\n"
        "run         run\n"
        f"layout      {LAYOUT.fingerprint}\n"
        "contract    H 24, align overwrite, published as bf16\n"
        f"anchors     2 files, {size:,} bytes: a resume keeps local progress\n"
        "\n"
        "fragment  tensors  version  digest  steps  tokens       delta\n"
        "       0        3        4      d4      3      30      pushed\n"
        "       1        2        5      d5      0       0  not pushed\n"
    )


def test_record_itself_may_be_named(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, str(checkpoint / RECORD_FILE)) == shown(capsys, str(checkpoint))


def test_record_is_shown_as_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(shown(capsys, str(checkpoint), "--json"))
    written = json.loads((checkpoint / RECORD_FILE).read_text())
    assert facts == {**written, "anchor_faults": {}}


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda path: path.unlink(), "cannot be read: [Errno 2] No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes; expected"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x00"), "is damaged: its checksum is not"),
    ],
)
def test_damaged_anchors_are_shown(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], fault: str
) -> None:
    path = checkpoint / "diloco_anchors_00001.safetensors"
    damage(path)
    (line,) = [line for line in shown(capsys, str(checkpoint)).splitlines() if "damaged: " in line]
    assert line.startswith(f"            damaged: {path} ")
    assert fault in line
    assert list(json.loads(shown(capsys, str(checkpoint), "--json"))["anchor_faults"]) == [path.name]
    assert "damaged: " not in shown(capsys, str(checkpoint), "--no-check")


def test_folder_whose_name_says_another_iteration_is_doubted(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renamed = checkpoint.rename(checkpoint.parent / "checkpoint-9")
    line = "iteration   8 (but the folder says 9: a resume from it is a cold start)"
    assert line in shown(capsys, str(renamed)).splitlines()


def test_folder_without_a_record_is_told_what_a_resume_from_it_would_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, str(tmp_path)) == (
        f"there is no {RECORD_FILE} in {tmp_path}; a resume from this checkpoint is a cold start"
    )


def test_output_folder_is_answered_with_its_checkpoints(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = checkpoint.parent
    line = f"{output} holds checkpoints and is none; expected one of checkpoint-8 in it"
    assert refused(capsys, str(output)) == line


def test_other_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, str(tmp_path / "nowhere")).startswith(f"{tmp_path}/nowhere is no folder; expected a trainer")
    assert "CHECKPOINT" in refused(capsys)
    assert "unrecognized arguments: --xml" in refused(capsys, str(tmp_path), "--xml")
