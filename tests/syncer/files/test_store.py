"""The files of a checkpoint: written once, kept as long as they are needed, never believed without a look."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from swift_diloco.core.errors import UserError
from swift_diloco.core.files import checkpoint_files
from swift_diloco.core.files.checkpoint_files import MANIFEST, fragment_file, manifest_file, read_newest
from syncer.files.store import Store
from tests.syncer.saves import (
    LAYOUT,
    PLAN,
    late_push,
    name_of,
    reopened,
    values_of,
    write,
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def file_of(fragment: int, version: int) -> str:
    return fragment_file(fragment, version, name_of(fragment, version).digest)


def test_what_was_written_is_read_bit_for_bit(tmp_path: Path) -> None:
    manifest = write(Store(tmp_path, 2), (3, 2), (late_push(),))
    intact = read_newest(tmp_path)
    assert (intact.manifest, intact.shape.layout, intact.shape.plan) == (manifest, LAYOUT, PLAN)
    for fragment, version in ((0, 3), (1, 2)):
        momentum = intact.momenta[fragment]
        assert momentum is not None
        assert np.array_equal(intact.values[fragment], values_of(fragment, version))
        assert np.array_equal(momentum, -values_of(fragment, version))
    assert np.array_equal(intact.carried[0], values_of(1, 7))
    assert intact.skipped == ()


def test_a_fragment_file_is_a_safetensors_file_for_everybody(tmp_path: Path) -> None:
    write(Store(tmp_path, 2), (3, 2))
    found = load_file(tmp_path / file_of(0, 3))
    assert found.keys() == {"parameters", "momentum"}
    assert np.array_equal(found["parameters"], values_of(0, 3))


def test_only_changed_fragments_are_written(tmp_path: Path) -> None:
    store = Store(tmp_path, 2)
    write(store, (1, 2))
    before = (tmp_path / file_of(1, 2)).stat().st_mtime_ns
    write(store, (3, 2))
    assert (tmp_path / file_of(1, 2)).stat().st_mtime_ns == before
    assert (tmp_path / file_of(0, 3)).exists()


def test_a_restarted_syncer_does_not_write_again_what_is_there(tmp_path: Path) -> None:
    write(Store(tmp_path, 2), (1, 2))
    before = (tmp_path / file_of(1, 2)).stat().st_mtime_ns
    store, _ = reopened(tmp_path)
    write(store, (3, 2))
    assert (tmp_path / file_of(1, 2)).stat().st_mtime_ns == before
    assert read_newest(tmp_path).manifest.number == 2


def test_the_last_n_checkpoints_are_kept_and_all_else_of_ours_goes(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("not of the syncer")
    (tmp_path / ".tmp-fragment-0-v9-dead.safetensors").write_text("torn")
    store = Store(tmp_path, 2)
    for versions in ((1, 2), (3, 2), (3, 4)):
        write(store, versions, (late_push(),) if versions == (1, 2) else ())
    layout = next(name for name in names(tmp_path) if name.startswith("layout-"))
    fragments = {file_of(0, 3), file_of(1, 2), file_of(1, 4)}
    assert names(tmp_path) == {"mine.txt", MANIFEST, manifest_file(2), manifest_file(3), layout, *fragments}


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("spoil", [damage, cut_short, Path.unlink])
@pytest.mark.parametrize("victim", ["fragment", "manifest", "numbered"])
def test_a_spoilt_newest_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, spoil: Callable[[Path], None], victim: str
) -> None:
    store = Store(tmp_path, 2)
    write(store, (1, 2))
    write(store, (3, 2))
    if victim == "fragment":
        spoil(tmp_path / file_of(0, 3))
    else:
        spoil(tmp_path / MANIFEST)
        if victim == "numbered":
            spoil(tmp_path / manifest_file(2))
    intact = read_newest(tmp_path)
    if victim == "manifest":  # Its copy under its number is as good.
        assert intact.manifest.number == 2
        return
    assert intact.manifest.number == 1
    assert np.array_equal(intact.values[0], values_of(0, 1))
    if not (victim == "numbered" and spoil is Path.unlink):
        assert intact.skipped and ("fragment-0-v3" in intact.skipped[0] or "manifest" in intact.skipped[0])


def test_a_checkpoint_that_was_passed_over_is_never_believed_again(tmp_path: Path) -> None:
    store = Store(tmp_path, 2)
    write(store, (1, 2))
    write(store, (3, 2))
    spoilt = tmp_path / file_of(0, 3)
    good = spoilt.read_bytes()
    damage(spoilt)
    reopened(tmp_path)
    spoilt.write_bytes(good)
    assert read_newest(tmp_path).manifest.number == 1
    store, _ = reopened(tmp_path)
    assert write(store, (5, 2)).number == 2 and read_newest(tmp_path).state.step == 5


def test_when_nothing_is_intact_every_fault_is_named(tmp_path: Path) -> None:
    write(Store(tmp_path, 2), (1, 2))
    damage(tmp_path / file_of(1, 2))
    with pytest.raises(UserError, match=r"no checkpoint in .* is intact: manifest-00000001.json \(outer step 2\): "):
        read_newest(tmp_path)


@pytest.mark.parametrize("folder", ["missing", ""])
def test_a_folder_without_a_checkpoint_is_a_users_mistake(tmp_path: Path, folder: str) -> None:
    with pytest.raises(UserError, match="holds no checkpoint of a syncer"):
        read_newest(tmp_path / folder)


def test_a_manifest_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Store(tmp_path, 2), (1, 2))
    monkeypatch.setattr(checkpoint_files, "FORMAT", 2)
    with pytest.raises(UserError, match="has format 1; this version reads format 2"):
        read_newest(tmp_path)


def test_a_file_where_the_folder_should_be_is_a_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write checkpoints to .*choose another --checkpoint-path"):
        Store(tmp_path / "file", 2).prepare()


def test_two_syncers_do_not_share_a_folder(tmp_path: Path) -> None:
    first = Store(tmp_path, 2)
    first.prepare()
    with pytest.raises(UserError, match="another syncer writes its checkpoints to"):
        Store(tmp_path, 2).prepare()
    first.close()
    second = Store(tmp_path, 2)
    second.prepare()
    second.close()


def test_files_that_somebody_took_away_are_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "saved", 2)
    write(store, (1, 2))
    for path in (tmp_path / "saved").iterdir():
        path.unlink()
    (tmp_path / "saved").rmdir()
    write(store, (3, 2))
    assert read_newest(tmp_path / "saved").state.step == 3


# -- Killed at any instant --------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


class Fuse:
    """Lets so many operations on the disk happen and kills the process at the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 10**9
        self.burnt = 0
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # The kernel outlives us here; a disk takes its time.
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink"), (Path, "rename"), (Path, "open")):
            monkeypatch.setattr(owner, name, self._guarded(getattr(owner, name)))

    def _guarded(self, operation: Callable[..., object]) -> Callable[..., object]:
        def guarded(*given: object, **named: object) -> object:
            if self.left <= 0:
                self.burnt += 1
                raise Killed
            self.left -= 1
            return operation(*given, **named)

        return guarded


@pytest.mark.parametrize("resumed", [False, True])
def test_whenever_the_process_is_killed_the_old_or_the_new_checkpoint_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    fuse, seen = Fuse(monkeypatch), []
    for operations in range(100):
        folder = tmp_path / str(operations)
        fuse.left = 10**9
        store = Store(folder, 1)
        write(store, (1, 2))
        fuse.left = operations
        try:
            if resumed:
                store, _ = reopened(folder, keep=1)
            write(store, (3, 2), (late_push(),))
            done = True
        except Killed:
            done = False
        fuse.left = 10**9
        intact = read_newest(folder)
        assert intact.skipped == ()
        versions = tuple(name.version for name in intact.state.values)
        assert versions in ((1, 2), (3, 2)) and len(intact.carried) == (versions == (3, 2))
        seen.append(versions)
        store, _ = reopened(folder)  # and a run goes on from there
        assert write(store, (5, 2)).state.step == 5
        if done:
            break
    assert seen == sorted(seen) and seen[0] == (1, 2) and seen[-1] == (3, 2) and len(seen) > 10
    assert fuse.burnt == len(seen) - 1
