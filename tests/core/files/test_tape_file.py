"""tape_file.py: a tape as it lies on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.tape_file import read_tape
from swift_diloco.core.formats.tape_lines import Stateless, TapeError, encode

WHOLE = encode(Stateless(island=1), 1.0)


def test_lines_have_their_numbers_and_torn_ones_are_told(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(WHOLE + WHOLE[:9] + b"\n" + WHOLE + WHOLE[:12])
    line = Stateless(time=1.0, island=1)
    assert list(read_tape(path)) == [(1, line), (2, None), (3, line), (4, None)]


def test_what_the_format_does_not_have_and_a_missing_file_are_users_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_bytes(WHOLE + b'{"event":"moon","time":1.0}\n')
    with pytest.raises(TapeError, match="line 2 of the tape"):
        list(read_tape(path))
    with pytest.raises(UserError, match="cannot read the event tape"):
        list(read_tape(tmp_path / "missing"))
