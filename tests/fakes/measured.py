"""One life of a fake island in a process of its own, which says by how much its memory grew while it started.

`python -m tests.fakes.measured '{"address": …}'` prints one JSON line: bytes of this process's pieces, and the growth
of its resident memory from the moment its fragments were known until training could begin, at its peak.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from swift_diloco.core.layout.pieces import PieceMap
from tests.fakes.quadratic import QuadraticModel
from tests.fakes.trial import Trial

PEAK_RESET = "5"
"""See proc(5), clear_refs: the peak becomes the present size."""


def resident(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


class MeasuredModel(QuadraticModel):
    """Begins to measure when it learns the fragments: its own values are there, anchors of a checkpoint too."""

    began_with = 0

    def bind(self, pieces: PieceMap) -> None:
        super().bind(pieces)
        Path("/proc/self/clear_refs").write_text(PEAK_RESET)
        type(self).began_with = resident("VmRSS")


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    for path in ("out", "resume_from"):
        if given.get(path):
            given[path] = Path(given[path])
    peak: list[int] = []
    trial = Trial(
        **given, looks=False, model_type=MeasuredModel, before_step=lambda step: peak.append(resident("VmHWM"))
    )
    trial.vanish_when = lambda island, step: step == trial.steps
    trial.begin().join()
    pieces = sum(part.numel() * part.element_size() for model in trial.models for part in model.parts.values())
    print(json.dumps({"pieces": pieces, "growth": peak[0] - MeasuredModel.began_with}))


if __name__ == "__main__":
    main()
