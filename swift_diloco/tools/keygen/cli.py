"""`swift-diloco keygen`: makes the key pairs with which islands, syncer and operators know each other.

Knows the key maker and names of files; how a key file looks and is protected is `core/files/key_files.py`'s matter.
"""

from __future__ import annotations

from pathlib import Path

import zmq

from swift_diloco.core.command_line import Parser
from swift_diloco.core.errors import UserError
from swift_diloco.core.files.key_files import SECRET_SUFFIX, KeyPair, write_pair

DEFAULT_NAMES = ("syncer", "admin", "island-0", "island-1")

NAMES_MAX = 1024
"""Most pairs made at once."""


def new_pair() -> KeyPair:
    """A fresh key pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def main(words: list[str]) -> int:
    """The command. Returns the exit code; raises `UserError`."""
    parser = Parser(
        prog="swift-diloco keygen",
        description="Make key pairs: DIR/NAME.key (secret, mode 0600) and DIR/NAME.pub for each NAME.",
    )
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder for the keys; made if it is not there")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"names (default: {' '.join(DEFAULT_NAMES)})")
    found = parser.parse_args(words)
    make_pairs(found.dir, tuple(found.names) or DEFAULT_NAMES)
    print(advice(found.dir))
    return 0


def make_pairs(folder: Path, names: tuple[str, ...]) -> None:
    """Write a pair for each name; nothing is written when one of them is there. Raises `UserError`."""
    if len(names) > NAMES_MAX or len(set(names)) < len(names):
        raise UserError(f"{len(names)} names; expected up to {NAMES_MAX} different ones")
    for name in names:
        if not name or name.startswith(".") or "/" in name or not name.isascii() or not name.isprintable():
            raise UserError(f"{name!r} cannot be the name of a key; expected something like island-0")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from None
    for name in names:
        if (folder / (name + SECRET_SUFFIX)).exists():
            raise UserError(
                f"{folder / (name + SECRET_SUFFIX)} exists already, and keys are never overwritten; "
                "remove it or choose another name"
            )
    for name in names:
        write_pair(folder, name, new_pair())


def advice(folder: Path) -> str:
    """What to do with the files."""
    return "\n".join(
        [
            f"wrote key pairs to {folder}; NAME.key is secret, NAME.pub is not",
            f"syncer:  swift-diloco syncer --curve-key {folder}/syncer.key --curve-allow {folder} "
            f"--admin-keys {folder}/admin.pub",
            f"island:  --diloco_curve_key island-0{SECRET_SUFFIX} --diloco_syncer_key syncer.pub "
            "(copy both files to the island)",
        ]
    )
