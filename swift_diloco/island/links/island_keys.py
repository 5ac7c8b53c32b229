"""The keys of an island's connections: from its settings, and to its other ranks."""

from __future__ import annotations

from pathlib import Path

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.key_files import CurveKeys, KeyPair, load_pair, public_key
from swift_diloco.core.settings.island_settings import IslandSettings


def island_keys(settings: IslandSettings) -> CurveKeys | None:
    """The keys an island's settings name; None when it talks in the clear. Raises `UserError`."""
    if not settings.curve_key and not settings.syncer_key:
        return None
    if not settings.curve_key or not settings.syncer_key:
        missing, given = ("curve_key", "syncer_key") if not settings.curve_key else ("syncer_key", "curve_key")
        raise UserError(
            f"--diloco_{given} is given without --diloco_{missing}; an encrypted connection needs the island's "
            "secret key file and the syncer's public key"
        )
    return CurveKeys(load_pair(Path(settings.curve_key).expanduser()), public_key(settings.syncer_key))


def encode_keys(keys: CurveKeys | None) -> bytes:
    """For the other ranks of the island, over the training network. Only rank 0's node needs the key files."""
    return b"" if keys is None else " ".join((keys.own.public, keys.own.secret, keys.server)).encode()


def decode_keys(shared: bytes) -> CurveKeys | None:
    """The inverse."""
    if not shared:
        return None
    public, secret, server = shared.decode().split(" ")
    return CurveKeys(KeyPair(public, secret), server)
