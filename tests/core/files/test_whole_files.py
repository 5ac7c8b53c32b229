"""A file is there whole, under its name, or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift_diloco.core.files.whole_files import TEMPORARY, Lasting, replaced, write_whole

BLOCKS: list[bytes | memoryview] = [b"new ", memoryview(b"content")]

KILLED_AT = """
import os, sys
from pathlib import Path
from swift_diloco.core.files.whole_files import write_whole
calls = 0
def count(name):
    real = getattr(os, name)
    def counted(*given, **named):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
        return real(*given, **named)
    setattr(os, name, counted)
for name in ("open", "fsync", "replace", "close"):
    count(name)
write_whole(Path(sys.argv[1]), [b"new " * 20_000, b"content"])
"""


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the kernel, by name: fsync of a file and of a folder, and renames."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        done.append("fsync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync file")
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        done.append(f"rename to {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    return done


@pytest.mark.parametrize("before", [None, b"old"])
def test_bytes_are_on_the_disk_before_the_name_is_and_then_the_name_is(
    tmp_path: Path, performed: list[str], before: bytes | None
) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    write_whole(path, BLOCKS)
    assert performed == ["fsync file", "rename to file", "fsync folder"]
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"new content", [path])


@pytest.mark.parametrize(
    ("lasting", "waits"), [(Lasting.BYTES, ["fsync file", "rename to file"]), (Lasting.NOTHING, ["rename to file"])]
)
def test_a_file_that_need_not_last_waits_for_less(
    tmp_path: Path, performed: list[str], lasting: Lasting, waits: list[str]
) -> None:
    write_whole(tmp_path / "file", BLOCKS, lasting)
    assert performed == waits
    assert (tmp_path / "file").read_bytes() == b"new content"


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def torn() -> Iterator[bytes]:
        yield b"new "
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_whole(path, torn())
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


def test_a_block_writes_where_it_is_told_and_nobody_sees_it_before_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replaced(path) as temporary:
        temporary.write_bytes(b"new")
        assert temporary.parent == tmp_path and temporary.name.startswith(TEMPORARY)
        assert not path.exists()
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"new", [path])


def test_a_secret_is_its_owners_alone_from_its_first_byte(tmp_path: Path) -> None:
    modes: list[int] = []

    def looked_at() -> Iterator[bytes]:
        yield b"secret"
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())

    write_whole(tmp_path / "file", looked_at(), mode=0o600)
    assert modes == [0o600]
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


@pytest.mark.net
def test_a_process_that_is_killed_anywhere_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path, seen = tmp_path / "file", []
    for call in range(1, 20):
        path.write_bytes(b"old")
        code = subprocess.run([sys.executable, "-S", "-c", KILLED_AT, str(path), str(call)], env=env()).returncode
        seen.append(path.read_bytes()[-7:])
        if code == 0:
            break
        assert code == -9
    assert len(seen) > 5 and seen == sorted(seen, reverse=True) and set(seen) == {b"old", b"content"}


def env() -> dict[str, str]:
    """Finds our package; `-S` leaves site-packages, and what they start, out of a process that is killed 8 times."""
    return {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
