"""folder.py: whose folder is touched."""

from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.tools.quickstart.folder import MARKER, claim


def test_a_new_folder_is_made_and_marked(tmp_path: Path) -> None:
    folder, lock = claim(tmp_path / "deep" / "run")
    with lock:
        assert (folder.root / MARKER).exists()
        assert folder.shard(1) == folder.root / "data" / "island-1.jsonl"
        assert folder.log("alone").parent.is_dir()


def test_a_foreign_folder_with_content_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(UserError, match="is not empty and not from an earlier quickstart"):
        claim(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_earlier_run_is_cleared_away_and_nothing_else(tmp_path: Path) -> None:
    folder, lock = claim(tmp_path)
    lock.close()
    (folder.output("island-7") / "checkpoint-3").mkdir(parents=True)
    (folder.root / "report.json").write_text("{}")
    (folder.root / ".tmp-report.html-7").write_text("torn")
    (folder.root / "notes.txt").write_text("mine")
    _, lock = claim(tmp_path)
    lock.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [MARKER, "data", "logs", "notes.txt"]


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    _, lock = claim(tmp_path)
    with lock, pytest.raises(UserError, match="another quickstart is running"):
        claim(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(UserError, match="is a file; name a folder"):
        claim(path)
