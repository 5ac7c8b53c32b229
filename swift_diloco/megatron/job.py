"""What the island is told of its ms-swift job: where it begins, its run folder, and where the syncer is.

The run folder outlives a restart of the job. ms-swift makes a new versioned output folder for each start, so the run
folder lies beside those.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from swift_diloco.core.errors import UserError
from swift_diloco.core.settings import EMBEDDED, IslandSettings, require_syncer
from swift_diloco.island import JobFacts

RUN_FOLDER = "diloco"
INSTANCE_BYTES = 16


def run_folder(args: Any, settings: IslandSettings) -> Path:
    """The folder that the starts of one job share."""
    if settings.run_dir:
        return Path(settings.run_dir)
    output = Path(args.output_dir)
    return (output.parent if args.add_version else output) / RUN_FOLDER


def instance_of(folder: Path, island: int) -> str:
    """The token by which the syncer knows a restart of this island from a second one of the same id; made once."""
    path = folder / f"instance-{island}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            fresh = folder / f".instance-{island}-{os.getpid()}"
            fresh.write_text(secrets.token_hex(INSTANCE_BYTES))
            fresh.replace(path)
        return path.read_text().strip()
    except OSError as error:
        raise UserError(
            f"the run folder {folder} cannot be written: {error}; give another one with --diloco_run_dir"
        ) from error


def job_facts(args: Any, step: int, settings: IslandSettings, *, rank: int) -> JobFacts:
    """The facts of this rank; only rank 0 has a run folder and an address to look up."""
    syncer = require_syncer(settings)
    folder = run_folder(args, settings)

    def address() -> str:
        if syncer != EMBEDDED:
            return syncer
        from swift_diloco.embedded import start_or_find

        return start_or_find(folder, settings)

    return JobFacts(step=step, instance=instance_of(folder, settings.island_id) if rank == 0 else "", address=address)
