"""The event tape: whole lines, at once, appended."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.tape_file import read_tape
from swift_diloco.core.formats import tape_lines
from syncer.files.tape import Tape


def test_lines_are_there_at_once_and_appended_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "tape.jsonl"
    with Tape(path, clock=lambda: 12.3456789) as tape:
        tape.write(tape_lines.Stopped(reason="é"))
        assert path.read_text(encoding="utf-8") == (
            '{"event":"opened","time":12.345679,"format":1}\n{"event":"stopped","time":12.345679,"reason":"é"}\n'
        )
    with Tape(path, clock=lambda: 13.0) as tape:
        tape.write(tape_lines.Stateless(island=1))
    kinds = [tape_lines.Opened, tape_lines.Stopped, tape_lines.Opened, tape_lines.Stateless]
    assert [type(line) for _, line in read_tape(path)] == kinds


def test_a_line_that_a_killed_process_left_unfinished_stays_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_text('{"event":"stateless","time":1.0,"island":0}\n{"event":"stopped","t')
    with Tape(path, clock=lambda: 1.0) as tape:
        tape.write(tape_lines.Stateless(island=1))
    first, second = tape_lines.Stateless(time=1.0, island=0), tape_lines.Stateless(time=1.0, island=1)
    opened = tape_lines.Opened(time=1.0, format=tape_lines.FORMAT)
    assert list(read_tape(path)) == [(1, first), (2, None), (3, opened), (4, second)]


class FullDisk:
    """A file on a disk with room for some bytes."""

    def __init__(self, path: Path, room: int) -> None:
        self._file = path.open("ab", buffering=0)
        self.room = room

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        size = min(self.room, len(data))
        self.room -= size
        return self._file.write(data[:size])

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


def test_a_full_disk_loses_no_line_and_keeps_their_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tape.jsonl"
    with Tape(path, clock=lambda: 1.0) as tape:
        real, disk = tape._file, FullDisk(path, 40)
        real.close()
        tape._file = disk  # type: ignore[assignment]
        for t in range(3):
            tape.write(tape_lines.Stateless(island=t))
        with pytest.raises(OSError, match="the event tape could not be written"):
            tape.sync()
        disk.room = 10**6
        tape.write(tape_lines.Stateless(island=3))
        tape.sync()
    islands = [line.island for _, line in read_tape(path) if isinstance(line, tape_lines.Stateless)]
    assert islands == [0, 1, 2, 3] and len(path.read_text().splitlines()) == 5
    assert caplog.text.count("CANNOT BE WRITTEN") == 1, "told once, not for every line"


def test_file_that_cannot_be_written_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot append to the event tape"), Tape(tmp_path):
        pass


def test_fields_that_are_not_json_are_our_bug_and_write_nothing(tmp_path: Path) -> None:
    with Tape(tmp_path / "tape.jsonl") as tape:
        with pytest.raises(TypeError):
            tape.write(tape_lines.Stopped(reason=object()))  # type: ignore[arg-type]
        assert [type(line) for _, line in read_tape(tmp_path / "tape.jsonl")] == [tape_lines.Opened]


def test_a_sync_beside_a_write_waits_for_the_line_and_does_not_call_it_lost(tmp_path: Path) -> None:
    with Tape(tmp_path / "tape.jsonl") as tape:
        errors: list[OSError] = []
        stop = threading.Event()

        def sync() -> None:
            while not stop.is_set():
                try:
                    tape.sync()
                except OSError as error:
                    errors.append(error)

        thread = threading.Thread(target=sync)
        thread.start()
        for number in range(2000):
            tape.write(tape_lines.Stateless(island=number))
        stop.set()
        thread.join()
    assert errors == []
