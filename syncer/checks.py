"""What is checked before a syncer touches anything: settings that contradict each other, and the checkpoint to resume.

Reads, never writes. Every mistake is one `UserError` that says what to give instead.
"""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from pathlib import Path

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.checkpoint_files import Intact, manifests, read_newest
from swift_diloco.core.numbers.outer_optimizer import OuterSettings
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from syncer.brain.memory.snapshot import check_contract


def check_settings(settings: SyncerSettings) -> None:
    """Raise `UserError` on settings that cannot go together."""
    expected, least = settings.expected_islands, settings.min_islands
    if expected and least > expected:
        raise UserError(
            f"--min-islands is {least}, but --expected-islands is {expected}: a run of {expected} islands could never "
            f"take a step; lower --min-islands or raise --expected-islands"
        )
    islands = max(expected, least)
    if settings.quorum > islands:
        raise UserError(
            f"--quorum is {settings.quorum}, above the number of islands, {islands} "
            f"(--expected-islands {expected}, --min-islands {least}); lower it, or give --expected-islands"
        )
    if settings.correction == "heloco" and settings.outer_momentum == 0:
        raise UserError(
            "--correction heloco compares deltas with the outer momentum, which is 0; give --outer-momentum above 0, "
            "for example 0.9"
        )
    if settings.checkpoint_path:
        if settings.durable_publish and settings.background_checkpoint:
            raise UserError(
                "--durable-publish writes every value before it is published, so there is nothing left to write in the "
                "background; give --background-checkpoint false with it"
            )
        return
    for flag, given in (("--resume", settings.resume), ("--durable-publish", settings.durable_publish)):
        if given:
            raise UserError(f"{flag} needs the folder of the checkpoint: give --checkpoint-path FOLDER")


def find_checkpoint(settings: SyncerSettings) -> Intact | None:
    """The checkpoint to continue; None for a new run, which must not overwrite another's. Raises `UserError`."""
    if not settings.checkpoint_path:
        return None
    folder = Path(settings.checkpoint_path).absolute()
    _refuse_unwritable(folder)
    if not settings.resume:
        if folder.is_dir() and manifests(folder):
            raise UserError(
                f"{folder} holds the checkpoint of a run; give --resume to continue it, or another --checkpoint-path "
                "for a new run"
            )
        return None
    intact = read_newest(folder)
    check_contract(intact.state, settings)
    return intact


def _refuse_unwritable(folder: Path) -> None:
    """Look, without making anything, whether checkpoints can be written there."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        what = "is no folder" if not nearest.is_dir() else "cannot be written to"
        raise UserError(f"cannot write checkpoints to {folder}: {nearest} {what}; choose another --checkpoint-path")


def check_bind(settings: SyncerSettings) -> None:
    """Refuse to listen where everybody could reach us, unless the user insists."""
    found = re.fullmatch(r"tcp://(\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+)):(\d+|\*)", settings.bind)
    if found is None:
        raise UserError(f"--bind is {settings.bind!r}; expected tcp://HOST:PORT, such as tcp://127.0.0.1:29410")
    open_to_all = not settings.insecure and not settings.curve_key
    if open_to_all and not is_loopback(found["v6"] or found["host"]):
        raise UserError(
            f"--bind {settings.bind} can be reached from other machines and its traffic is neither encrypted nor "
            "authenticated; give --curve-key and --curve-allow (`swift-diloco keygen` makes keys), --insecure if the "
            "network is trusted, or bind tcp://127.0.0.1:PORT"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def outer_settings(settings: SyncerSettings) -> OuterSettings:
    """The outer optimizer. Nesterov means nothing without momentum."""
    try:
        nesterov = settings.nesterov and settings.outer_momentum > 0
        return OuterSettings(settings.outer_lr, settings.outer_momentum, nesterov)
    except ValueError as error:
        raise UserError(f"{error}; change --outer-lr, --outer-momentum or --nesterov") from None
