"""The decoders under a coverage-guided fuzzer, for as long as one likes: `python -m tests.fuzz.coverage_guided 60`.

Needs atheris (`pip install atheris`), which has no wheel for every Python; the tests beside this file need nothing. An
input is frames, each behind its length in two bytes; the corpus begins with every message there is. A crash is written
to `crash-…` in the working folder, by libFuzzer, and replays by giving its name instead of the seconds.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from swift_diloco.core.errors import USER_MISTAKE_EXIT_CODE

INPUT_BYTES_MAX = 8192
RSS_LIMIT_MB = 1024
"""More than the decoders may ever hold for such inputs: growth ends the run as a crash."""


def unpack(data: bytes) -> list[bytes]:
    """The frames of an input."""
    parts, at = [], 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        parts.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return parts


def pack(parts: list[bytes]) -> bytes:
    """The inverse."""
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def main(words: list[str]) -> int:
    """Fuzz for so many seconds, or replay an input."""
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        print("atheris is not installed; pip install atheris", file=sys.stderr)
        return USER_MISTAKE_EXIT_CODE
    with atheris.instrument_imports(include=["swift_diloco.core.formats.frames", "swift_diloco.core.formats.messages"]):
        from tests.fuzz.inputs import SEEDS
        from tests.fuzz.test_decoders import take
    where = words[0] if words else "60"
    with tempfile.TemporaryDirectory() as corpus:
        for number, parts in enumerate(SEEDS):
            (Path(corpus) / str(number)).write_bytes(pack(parts))
        limits = [f"-max_len={INPUT_BYTES_MAX}", f"-rss_limit_mb={RSS_LIMIT_MB}"]
        run = [f"-max_total_time={where}", corpus] if where.isdigit() else [where]
        atheris.Setup([sys.argv[0], *limits, *run], lambda data: take(unpack(data)) and None)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
