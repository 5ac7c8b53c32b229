"""`swift-diloco keygen`, and the keys that an island's settings name."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from swift_diloco import cli
from swift_diloco.core.files.key_files import load_pair, load_public


def test_keygen_makes_pairs_for_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    assert cli.main(["keygen", str(folder)]) == 0
    names = ("admin", "island-0", "island-1", "syncer")
    assert sorted(path.name for path in folder.iterdir()) == [f"{n}.{end}" for n in names for end in ("key", "pub")]
    pairs = [load_pair(folder / f"{name}.key") for name in names]
    assert len({pair.secret for pair in pairs}) == 4
    for name, pair in zip(names, pairs, strict=True):
        assert zmq.curve_public(pair.secret.encode()).decode() == pair.public == load_public(folder / f"{name}.pub")
    shown = capsys.readouterr().out
    assert f"--curve-key {folder}/syncer.key --curve-allow {folder}" in shown
    assert not any(pair.secret in shown for pair in pairs)


def test_keygen_overwrites_nothing_and_then_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keygen", str(tmp_path), "island-2"]) == 0
    before = (tmp_path / "island-2.key").read_text()
    assert cli.main(["keygen", str(tmp_path), "island-3", "island-2"]) == 2
    assert "exists already, and keys are never overwritten" in capsys.readouterr().err
    assert (tmp_path / "island-2.key").read_text() == before
    assert not (tmp_path / "island-3.key").exists()


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b"])
def test_a_name_is_one_file_in_the_folder(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keygen", str(tmp_path), name]) == 2
    assert "cannot be the name of a key" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
