"""Key files for encrypted connections: reading, writing, and who is meant by a list of public keys.

A key pair is two small text files: `NAME.key` holds the secret and must be readable by its owner alone, `NAME.pub`
holds the public part and may be given to anybody. Keys are CURVE keys of ZeroMQ (Curve25519) in its Z85 spelling.

Knows files and texts, no sockets. Invariant: a secret is never part of an error message or of a `repr`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.whole_files import write_whole

SECRET_SUFFIX = ".key"
PUBLIC_SUFFIX = ".pub"
SECRET_MODE = 0o600

KEY_FILE_BYTES_MAX = 4096
"""A key file is three short lines; a larger file is something else given by mistake."""

KEYS_MAX = 4096
"""Most public keys in one list: four for each island a syncer takes."""

Z85_LENGTH = 40
"""Characters of a key."""

_Z85 = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#")


@dataclass(frozen=True)
class KeyPair:
    """One party's keys."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class CurveKeys:
    """What a client needs: its own pair, and the public key of the one server it will talk to."""

    own: KeyPair
    server: str


def write_pair(folder: Path, name: str, pair: KeyPair) -> None:
    """Write `NAME.key` and `NAME.pub`. Raises `UserError`; a file that is there is never replaced."""
    header = f"# swift-diloco {{}} key of {name}\n"
    secret_text = header.format("secret") + f"public {pair.public}\nsecret {pair.secret}\n"
    public_text = header.format("public") + f"public {pair.public}\n"
    paths = (folder / (name + SECRET_SUFFIX), folder / (name + PUBLIC_SUFFIX))
    for path in paths:
        if path.exists():
            raise UserError(f"{path} exists already, and keys are never overwritten; remove it or choose another name")
    for path, text, mode in zip(paths, (secret_text, public_text), (SECRET_MODE, 0o644), strict=True):
        _write_new(path, text, mode)


def write_secret_file(path: Path, text: str) -> None:
    """Replace a file that only its owner may read, whole."""
    try:
        write_whole(path, [text.encode("ascii")], mode=SECRET_MODE)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def _write_new(path: Path, text: str, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def read_secret_file(path: Path, what: str) -> str:
    """The text of a file that only its owner may read. Raises `UserError` when others can."""
    try:
        found = path.stat()
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror}") from None
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(
            f"{what} {path} can be read or changed by others (mode {stat.S_IMODE(found.st_mode):04o}); "
            f"expected {SECRET_MODE:04o}: chmod 600 {path}"
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise UserError(f"{what} {path} belongs to user {found.st_uid}; expected a file of your own")
    return _text(path, what)


def load_pair(path: Path) -> KeyPair:
    """A secret key file. Raises `UserError`."""
    what = "secret key file"
    lines = _fields(read_secret_file(path, what))
    if "secret" not in lines or "public" not in lines:
        raise UserError(f"{what} {path} has no secret key; expected a file that `swift-diloco keygen` wrote")
    return KeyPair(_key(lines["public"], path), _key(lines["secret"], path))


def load_public(path: Path) -> str:
    """The public key in a `.pub` file. Raises `UserError`."""
    lines = _fields(_text(path, "public key file"))
    if "public" not in lines:
        raise UserError(f"{path} has no public key; expected a {PUBLIC_SUFFIX} file that `swift-diloco keygen` wrote")
    return _key(lines["public"], path)


def public_key(text_or_path: str) -> str:
    """A public key given as such or as the path of its file."""
    if is_key(text_or_path):
        return text_or_path
    return load_public(Path(text_or_path).expanduser())


def load_public_keys(path: Path) -> frozenset[str]:
    """Every public key of a `.pub` file or of a folder of them. Raises `UserError`, also where there is none."""
    if not path.is_dir():
        return frozenset([load_public(path)])
    files = sorted(path.glob(f"*{PUBLIC_SUFFIX}"))
    if not files:
        raise UserError(f"{path} holds no {PUBLIC_SUFFIX} file; put the public keys there that are allowed")
    if len(files) > KEYS_MAX:
        raise UserError(f"{path} holds {len(files)} public keys; at most {KEYS_MAX} are taken")
    return frozenset(load_public(file) for file in files)


def is_key(text: str) -> bool:
    """Whether a text is spelt as a key is."""
    return len(text) == Z85_LENGTH and _Z85.issuperset(text)


def _fields(text: str) -> dict[str, str]:
    pairs: Iterable[tuple[str, str, str]] = (line.partition(" ") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs if name in ("public", "secret")}


def _key(text: str, path: Path) -> str:
    if not is_key(text):
        raise UserError(f"{path} is damaged: a key has {Z85_LENGTH} characters of Z85; make a new pair")
    return text


def _text(path: Path, what: str) -> str:
    try:
        if path.stat().st_size > KEY_FILE_BYTES_MAX:
            raise UserError(f"{what} {path} is longer than {KEY_FILE_BYTES_MAX} bytes; it is something else")
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{what} {path} is not text; expected a file that `swift-diloco keygen` wrote") from None
