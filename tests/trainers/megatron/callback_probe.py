"""The real callback inside the real trainer, which writes down what the island's values are at each moment.

Run in the fork server: `tests.trainers.megatron.callback_probe:main FOLDER ARGV…`. Moments: `loaded` (before the
island starts), `started`, `saved-N`. Each rank writes the values of its boxes to `MOMENT-RANK.npz`, those of its
anchors to `MOMENT-anchors-RANK.npz`, and facts to `MOMENT-RANK.json`; rank 0 the layout to `layout.json`; every rank
the learning rate and weight decay of each group after each step to `rates-RANK.jsonl`.

`PROBED_VANISHES` names a moment after which all ranks kill themselves.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch
from swift.megatron.callbacks import megatron_callbacks_map

from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.cpu import cpu_arguments
from swift_diloco.island.island import Island
from swift_diloco.island.numbers.host_buffers import Values
from swift_diloco.trainers.megatron.callback import DilocoCallback
from swift_diloco.trainers.megatron.pieces import MegatronPieces

VANISHES = "PROBED_VANISHES"


class ProbedIsland(Island):
    """Has its values written down around `start`."""

    probe: ClassVar[ProbedCallback]

    def start(self) -> None:
        probe = type(self).probe
        probe.island = self
        before = probe.bits(), {id(master.parameter): master.values.clone() for master in probe.masters()}
        super().start()
        probe.started(*before)

    def _prepare(self) -> None:
        super()._prepare()
        if self.group.rank == 0:
            whole = type(self).probe.folder / "layout.json"
            partial = whole.with_suffix(".part")
            partial.write_bytes(msgspec.json.encode(list(self.layout.tensors)))
            partial.rename(whole)


class ProbedCallback(DilocoCallback):
    """The callback under test."""

    folder: ClassVar[Path]
    island_type: ClassVar[Any] = ProbedIsland
    island: ProbedIsland

    def on_train_begin(self) -> None:
        ProbedIsland.probe = self
        super().on_train_begin()

    def started(self, bits: dict[str, torch.Tensor], masters: dict[int, torch.Tensor]) -> None:
        """With the bits and the masters as they were before."""
        now = self.bits()
        self._write("started", {"kept": {name: torch.equal(bits[name], now[name]) for name in bits}})
        self._write_loaded(masters)
        self._vanish("started")

    def on_step_end(self) -> None:
        groups = [[group["lr"], group["weight_decay"]] for group in self.trainer.optimizer.param_groups]
        with (self.folder / f"rates-{torch.distributed.get_rank()}.jsonl").open("a") as file:
            file.write(json.dumps([self.state.iteration, groups]) + "\n")
        super().on_step_end()

    def on_save(self, output_dir: str) -> None:
        super().on_save(output_dir)
        self._write(f"saved-{self.state.iteration}", {})
        self._vanish(f"saved-{self.state.iteration}")

    # -- writing down --------------------------------------------------------------------------------------------------

    def masters(self) -> list[Any]:
        from swift_diloco.trainers.megatron.masters import masters_of

        return masters_of(self.trainer.optimizer)

    def bits(self) -> dict[str, torch.Tensor]:
        parameters = [p.detach() for model in self.trainer.unwrapped_models for p in model.parameters()]
        masters = [master.values for master in self.masters()]
        return {
            "parameters": torch.cat([p.reshape(-1).view(torch.uint8) for p in parameters]).clone(),
            "masters": torch.cat([m.reshape(-1).view(torch.uint8) for m in masters]).clone(),
        }

    def _rounded(self) -> bool:
        """Whether the low-precision parameters are the masters, rounded."""
        return all(
            torch.equal(m.parameter.detach().view(-1)[m.begin : m.end], m.values.to(m.parameter.dtype))
            for m in self.masters()
        )

    def _model(self) -> tuple[MegatronPieces, PieceMap]:
        pieces = self.island.performer.pieces
        assert pieces is not None and isinstance(self.island.model, MegatronPieces)
        return self.island.model, pieces

    def _write(self, moment: str, facts: dict[str, Any]) -> None:
        model, pieces = self._model()
        streams: dict[int, Values] = {}
        for fragment in range(len(pieces.plan)):
            out = torch.empty(pieces.elements(fragment))
            model.read(fragment, out)
            streams[fragment] = out.numpy()
        store = self.island.performer.values
        assert store is not None
        rank = self.island.group.rank
        self._save(f"{moment}-{rank}", streams)
        self._save(f"{moment}-anchors-{rank}", store.anchors)
        facts = {**facts, "rounded": self._rounded(), "iteration": self.state.iteration}
        (self.folder / f"{moment}-{rank}.json").write_text(json.dumps(facts))

    def _write_loaded(self, masters: dict[int, torch.Tensor]) -> None:
        """The values before the island started, in the order of the pieces, which are known only now."""
        now = [(master, master.values.clone()) for master in self.masters()]
        for master, _ in now:
            master.values.copy_(masters[id(master.parameter)])
        model, pieces = self._model()
        streams = {}
        for fragment in range(len(pieces.plan)):
            out = torch.empty(pieces.elements(fragment))
            model.read(fragment, out)
            streams[fragment] = out.numpy()
        for master, values in now:
            master.values.copy_(values)
        self._save(f"loaded-{self.island.group.rank}", streams)

    def _save(self, name: str, streams: Any) -> None:
        _, pieces = self._model()
        arrays: dict[str, Values] = {}
        for fragment, stream in streams.items():
            position = 0
            for box in pieces.fragment_boxes(fragment):
                key = f"{pieces.layout.tensors[box.tensor].name}|{json.dumps(box.start)}"
                arrays[key] = stream[position : position + box.elements].reshape(box.shape)
                position += box.elements
        np.savez(self.folder / f"{name}.npz", allow_pickle=False, **arrays)

    def _vanish(self, moment: str) -> None:
        if os.environ.get(VANISHES) == moment:
            self.island.group.all_true([True])  # no rank is killed while another still writes
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """The callback, and what it writes down."""
    from swift.megatron import megatron_sft_main

    folder, *argv = sys.argv[1:]
    ProbedCallback.folder = Path(folder)
    megatron_callbacks_map["probed"] = ProbedCallback
    sys.argv = ["sft.py", *cpu_arguments(argv), "--callbacks", "probed"]
    megatron_sft_main()
