"""Reading checkpoints: one of an earlier version, and any that a disk has spoilt."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.checkpoint_files import MANIFEST, Damaged, read_manifest, read_newest, read_tensors
from swift_diloco.core.formats.manifest import FileEntry
from swift_diloco.core.formats.messages import ValueName

GOLDEN = Path(__file__).with_name("golden_checkpoint")
"""Two fragments at versions 3 and 2 with momentum, and one carried push; written when the format was made. It must be
readable for as long as FORMAT is 1."""


def test_the_golden_checkpoint_is_read_as_it_was_written() -> None:
    intact = read_newest(GOLDEN)
    state = intact.state
    assert (intact.manifest.format, intact.manifest.number, state.run, state.step) == (1, 1, "run", 3)
    assert state.values == (
        ValueName(0, 3, "4cd5030c05d519686416ecf893498d66"),
        ValueName(1, 2, "4dfc248eece7fba51adf71d8b167b4aa"),
    )
    assert np.array_equal(intact.values[0], np.arange(4, dtype=np.float32) + 300)
    assert np.array_equal(intact.values[1], np.arange(6, dtype=np.float32) + 200)
    momentum = intact.momenta[1]
    assert momentum is not None and np.array_equal(momentum, -intact.values[1])
    (push,) = state.carried
    assert (push.push, push.island, push.fragment, push.steps, push.tokens) == ("g.1", 1, 1, 3, 30)
    assert np.array_equal(intact.carried[0], np.arange(6, dtype=np.float32) + 700)
    assert [spec.name for spec in intact.shape.layout.tensors] == ["a", "b"]


@pytest.mark.parametrize("seed", range(40))
def test_a_spoilt_byte_is_noticed_wherever_it_is(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    folder = shutil.copytree(GOLDEN, tmp_path / "copy")
    for copy in folder.glob("manifest-*"):
        copy.unlink()
    victim = chance.choice(sorted(folder.iterdir()))
    content = bytearray(victim.read_bytes())
    place = chance.randrange(len(content))
    content[place] ^= 1 << chance.randrange(8)
    victim.write_bytes(bytes(content))
    try:
        intact = read_newest(folder)
    except UserError as error:
        assert "is intact" in str(error)
    else:  # Only white space around the manifest is not covered by a checksum.
        assert victim.name == MANIFEST and place >= len(content) - 1
        assert intact.state.step == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_file_that_was_cut_short_is_noticed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    folder = shutil.copytree(GOLDEN, tmp_path / "copy")
    for copy in folder.glob("manifest-*"):
        copy.unlink()
    victim = chance.choice(sorted(folder.iterdir()))
    content = victim.read_bytes()
    victim.write_bytes(content[: chance.randrange(len(content) - 1)])
    with pytest.raises(UserError, match="is intact"):
        read_newest(folder)


def test_a_manifest_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="is no file name"):
        read_tensors(tmp_path, FileEntry("../secret", 1, ""))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"checksum":"x","manifest":{}}', b"\xff\xfe", b"null"])
def test_what_is_no_manifest_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(Damaged):
        read_manifest(tmp_path / MANIFEST)
