"""The callback inside ms-swift's real Megatron trainer with an island that only writes down what is asked of it.

Run in the fork server: `tests.trainers.megatron.flow_probe:main FOLDER ARGV…`; each rank's events are the lines of
`events-RANK`. `FLOW_SCENARIO` names what the island does: nothing, `stop` after step 2, `fail` at step 2, `refuse` on
rank 1, `save` after step 1 and, parked, before step 3, `save and stop` after step 2, `leave` before step 3, or `ended`
at the start.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from swift.megatron.callbacks import megatron_callbacks_map

from swift_diloco.core.errors import PeerError, UserError
from swift_diloco.cpu import cpu_arguments
from swift_diloco.island.island import Instruction
from swift_diloco.trainers.megatron.callback import DilocoCallback

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
        resumed = f" of {job.resumed_from.name}" if job.resumed_from else ""
        self.note(f"island {settings.island_id} at {job.address()}, from step {job.step}{resumed}")
        self.begun = job.step
        self.parked = False
        self.instruction = Instruction()

    def note(self, event: str) -> None:
        with (self.folder / f"events-{self.rank}").open("a") as file:
            file.write(event + "\n")

    def start(self) -> None:
        self.note("start")

    def step_begins(self) -> Instruction:
        return self._order(self._before_step())

    def step_ended(self, step: int, *, trained: bool, tokens: int) -> Instruction:
        return self._order(self._after_step(step, trained=trained, tokens=tokens))

    def _order(self, instruction: Instruction) -> Instruction:
        """An order to stop stays."""
        self.instruction = replace(self.instruction, save=instruction.save) if self.instruction.stop else instruction
        return self.instruction

    def _before_step(self) -> Instruction:
        parked, self.parked = self.parked, False
        if parked and self.scenario == "save":
            self.note(f"save ordered before step {self.begun + 1}")
            return Instruction(save=True)
        if self.scenario == "leave" and self.begun == 2:
            return Instruction(stop=True, final=False)
        return Instruction(stop=self.scenario == "ended")

    def save(self, folder: Path, step: int) -> None:
        self.note(f"save {folder.name} of step {step}")

    def _after_step(self, step: int, *, trained: bool, tokens: int) -> Instruction:
        self.note(f"step {step} trained {trained} tokens {tokens > 0}")
        if step == 2 and self.scenario == "fail":
            raise PeerError("the syncer broke a rule")
        self.begun = step
        self.parked = step == 2
        if self.scenario == "save and stop":
            return Instruction(stop=step == 2, save=step == 2, final=False)
        return Instruction(stop=step == 2 and self.scenario == "stop", save=step == 1 and self.scenario == "save")

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
    """The callback under test."""

    island_type: ClassVar[Any] = FlowIsland


def main() -> None:
    """The callback, and what is asked of its island."""
    from swift.megatron import megatron_sft_main

    folder, *argv = sys.argv[1:]
    FlowIsland.folder = Path(folder)
    FlowIsland.output = Path(argv[argv.index("--output_dir") + 1])
    megatron_callbacks_map["flow"] = FlowCallback
    sys.argv = ["sft.py", *cpu_arguments(argv), "--callbacks", "flow"]
    megatron_sft_main()
