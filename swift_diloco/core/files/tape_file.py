"""Reading an event tape, which a syncer may still be writing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from swift_diloco.core.errors import UserError
from swift_diloco.core.formats.tape_lines import TapeLine, decode_all


def read_tape(path: Path) -> Iterator[tuple[int, TapeLine | None]]:
    """The lines of a tape with their numbers; None for one that was torn off. Raises `UserError`, also for a line that
    is not of this format."""
    try:
        with path.open("rb") as file:
            yield from decode_all(file)
    except OSError as error:
        raise UserError(f"cannot read the event tape {path}: {error.strerror}") from error
