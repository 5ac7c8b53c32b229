"""Dumps of stories as files, and what is told of a brain that raised."""

from __future__ import annotations

import time
from pathlib import Path

from swift_diloco.core.files.whole_files import write_whole
from swift_diloco.core.story.dump import DUMP_BYTES_MAX, Dump, dump_of, lines, parsed, written
from swift_diloco.core.story.frozen import StoryError
from swift_diloco.core.story.recorder import Story


def tell(story: Story, folder: Path, error: BaseException) -> None:
    """Write the story into a folder and add it to an error, after whose traceback it is printed.

    Nothing here hides the error: what goes wrong with the file is told in its place.
    """
    try:
        dump = dump_of(story)
    except Exception as fault:
        error.add_note(f"the story of {story.name} cannot be told: {type(fault).__name__}: {fault}")
        return
    path = folder.absolute() / f"story-{story.name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    try:
        write_whole(path, [written(dump).encode("ascii")])
        where = f"it is in {path}, to be replayed"
    except OSError as fault:
        where = f"it could not be written to {path}: {fault.strerror}"
    error.add_note("\n".join([f"the story of {story.name} follows; {where}", *lines(dump)]))


def read_story(path: Path) -> Dump:
    """Read a dump. Raises `StoryError`."""
    if (size := path.stat().st_size) > DUMP_BYTES_MAX:
        raise StoryError(f"{path} has {size} bytes; at most {DUMP_BYTES_MAX} are read")
    return parsed(path.read_bytes())
