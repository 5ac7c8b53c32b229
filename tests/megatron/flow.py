"""The callback inside ms-swift's real Megatron trainer with an island that only writes down what is asked of it.

Run in the fork server: `tests.megatron.flow:main FOLDER ARGV…`; each rank's events are the lines of `events-RANK`.
`FLOW_SCENARIO` names what the island does: nothing, `stop` after step 2, `fail` at step 2, or `refuse` on rank 1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from swift.megatron.callbacks import megatron_callbacks_map

from swift_diloco.core.errors import PeerError, UserError
from swift_diloco.cpu import cpu_arguments
from swift_diloco.island import Verdict
from swift_diloco.megatron.callback import DilocoCallback

SCENARIO = "FLOW_SCENARIO"


class FlowIsland:
    """The island's methods, written down. `finish` and `saved` also say which checkpoints are complete on disk."""

    folder: ClassVar[Path]
    output: ClassVar[Path]

    def __init__(self, settings: Any, pieces: Any, group: Any, job: Any) -> None:
        self.rank = group.rank
        self.scenario = os.environ.get(SCENARIO, "")
        if self.scenario == "refuse" and self.rank == 1:
            raise UserError("rank 1 does not like its flags")
        self.note(f"island {settings.island_id} at {job.address()}, from step {job.step}")

    def note(self, event: str) -> None:
        with (self.folder / f"events-{self.rank}").open("a") as file:
            file.write(event + "\n")

    def start(self) -> None:
        self.note("start")

    def step_ended(self, step: int, *, trained: bool, tokens: int) -> Verdict:
        self.note(f"step {step} trained {trained} tokens {tokens > 0}")
        if step == 2 and self.scenario == "fail":
            raise PeerError("the syncer broke a rule")
        return Verdict(stop=step == 2 and self.scenario == "stop", reason="the budget is reached")

    def finish(self, step: int) -> None:
        self.note(f"finish {step}, complete: {self._complete()}")

    def saved(self) -> None:
        self.note(f"saved, complete: {self._complete()}")

    def close(self, error: BaseException | None = None) -> None:
        self.note(f"close {type(error).__name__}" if error else "close")

    def _complete(self) -> list[str]:
        """Checkpoints with the metadata that Megatron writes last."""
        return sorted(path.parent.parent.name for path in self.output.glob("checkpoint-*/iter_*/.metadata"))


class FlowCallback(DilocoCallback):
    """The callback under test; saves are written down between the island's events."""

    island_type: ClassVar[Any] = FlowIsland

    def on_save(self, output_dir: str) -> None:
        island: Any = self._island
        island.note(f"save {Path(output_dir).name}")


def main() -> None:
    """See the module."""
    from swift.megatron import megatron_sft_main

    folder, *argv = sys.argv[1:]
    FlowIsland.folder = Path(folder)
    FlowIsland.output = Path(argv[argv.index("--output_dir") + 1])
    megatron_callbacks_map["flow"] = FlowCallback
    sys.argv = ["sft.py", *cpu_arguments(argv), "--callbacks", "flow"]
    megatron_sft_main()
