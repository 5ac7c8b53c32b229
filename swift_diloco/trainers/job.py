"""What the island is told of its ms-swift job: its run folder, its instance token, and where the syncer is.

The run folder outlives a restart of the job. ms-swift makes a new versioned output folder for each start, so the run
folder lies beside those.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.whole_files import write_whole
from swift_diloco.core.settings.island_settings import EMBEDDED, IslandSettings, require_syncer

RUN_FOLDER = "diloco"
INSTANCE_BYTES = 16


def run_folder(output: Path, settings: IslandSettings, *, versioned: bool) -> Path:
    """The folder that all starts of one job share; `versioned`: the output folder is of one start only."""
    if settings.run_dir:
        return Path(settings.run_dir)
    return (output.parent if versioned else output) / RUN_FOLDER


def ensure_instance(folder: Path, island: int) -> str:
    """The token by which the syncer tells a restart of this island from a second one of the same id; made once."""
    path = folder / f"instance-{island}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_whole(path, [secrets.token_hex(INSTANCE_BYTES).encode()])
        return path.read_text().strip()
    except OSError as error:
        raise UserError(
            f"the run folder {folder} cannot be written: {error}; give another one with --diloco_run_dir"
        ) from error


def wants_own_syncer(settings: IslandSettings) -> bool:
    """Whether this island starts the syncer itself. Raises `UserError` where another one should."""
    if require_syncer(settings) != EMBEDDED:
        return False
    if settings.island_id != 0:
        raise UserError(
            f"--diloco_syncer {EMBEDDED} is for island 0, which starts the syncer; this is island "
            f"{settings.island_id}: give it the address with --diloco_syncer tcp://HOST:PORT (island 0 logs it)"
        )
    return True
