"""Where the run folder is, who starts the syncer, and what a restart keeps."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.trainers.job import ensure_instance, run_folder, wants_own_syncer

EMBEDDED = IslandSettings(syncer="embedded")


def test_run_folder_is_beside_the_versioned_output_folders(tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert run_folder(output / "v3-20260101", EMBEDDED, versioned=True) == output / "diloco"
    assert run_folder(output, EMBEDDED, versioned=False) == output / "diloco"
    chosen = msgspec.structs.replace(EMBEDDED, run_dir=str(tmp_path / "mine"))
    assert run_folder(output, chosen, versioned=False) == tmp_path / "mine"


def test_restart_has_the_instance_token_of_its_island_and_of_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "diloco"
    first = ensure_instance(folder, 0)
    assert len(first) == 32
    assert ensure_instance(folder, 0) == first
    assert ensure_instance(folder, 1) != first
    assert sorted(path.name for path in folder.iterdir()) == ["instance-0", "instance-1"]


def test_run_folder_that_cannot_be_written_names_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--diloco_run_dir"):
        ensure_instance(tmp_path / "file" / "diloco", 0)


def test_only_island_0_starts_the_syncer() -> None:
    assert wants_own_syncer(EMBEDDED)
    assert not wants_own_syncer(IslandSettings(syncer="tcp://127.0.0.1:29410", island_id=3))
    with pytest.raises(UserError, match=r"this is island 3: give it the address with --diloco_syncer tcp://"):
        wants_own_syncer(msgspec.structs.replace(EMBEDDED, island_id=3))
    with pytest.raises(UserError, match="no syncer is given"):
        wants_own_syncer(IslandSettings())
