"""Key files: written once, read only where nobody else can read them, and refused with words that help."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.files import key_files as curve
from swift_diloco.core.files.key_files import KeyPair

PAIR = KeyPair("p" * 40, "s" * 40)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    curve.write_pair(tmp_path, "island-0", PAIR)
    return tmp_path


def test_a_pair_survives_its_files(written: Path) -> None:
    assert curve.load_pair(written / "island-0.key") == PAIR
    assert curve.load_public(written / "island-0.pub") == PAIR.public
    assert "s" * 40 not in (written / "island-0.pub").read_text()


def test_the_secret_is_its_owners_alone(written: Path) -> None:
    assert stat.S_IMODE((written / "island-0.key").stat().st_mode) == 0o600
    assert "s" * 40 not in repr(PAIR)


def test_a_key_is_never_overwritten(written: Path) -> None:
    with pytest.raises(UserError, match="exists already, and keys are never overwritten"):
        curve.write_pair(written, "island-0", KeyPair("q" * 40, "t" * 40))
    assert curve.load_pair(written / "island-0.key") == PAIR


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_secret_that_others_can_reach_is_refused(written: Path, mode: int) -> None:
    (written / "island-0.key").chmod(mode)
    with pytest.raises(
        UserError, match=f"can be read or changed by others .mode {mode:04o}.; expected 0600: chmod 600"
    ):
        curve.load_pair(written / "island-0.key")


def test_a_public_key_is_taken_as_text_or_as_a_file(written: Path) -> None:
    assert curve.public_key(PAIR.public) == PAIR.public
    assert curve.public_key(str(written / "island-0.pub")) == PAIR.public


def test_a_folder_stands_for_its_public_keys(written: Path) -> None:
    curve.write_pair(written, "island-1", KeyPair("q" * 40, "t" * 40))
    assert curve.load_public_keys(written) == {"p" * 40, "q" * 40}
    assert curve.load_public_keys(written / "island-1.pub") == {"q" * 40}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no secret key; expected a file that `swift-diloco keygen` wrote"),
        ("public x\nsecret y\n", "is damaged: a key has 40 characters of Z85"),
        ("x" * 5000, "is longer than 4096 bytes; it is something else"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "other.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UserError, match=reason):
        curve.load_pair(path)


def test_missing_files_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"secret key file .*none.key cannot be read: No such file"):
        curve.load_pair(tmp_path / "none.key")
    with pytest.raises(UserError, match="holds no .pub file"):
        curve.load_public_keys(tmp_path)
    binary = tmp_path / "binary.pub"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not text"):
        curve.load_public(binary)


def test_a_secret_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    for text in ("one\n", "two\n"):
        curve.write_secret_file(path, text)
        assert curve.read_secret_file(path, "admin token") == text
    assert os.listdir(tmp_path) == ["admin.token"]
