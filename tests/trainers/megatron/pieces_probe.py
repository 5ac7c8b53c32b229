"""Callbacks that try the pieces inside ms-swift's real Megatron trainer and write down what they saw.

Run in the fork server: `tests.trainers.megatron.pieces_probe:main PROBE FOLDER ARGV…`, where ARGV is a command line for
`megatron sft`. Each rank's report is `report-RANK.json`, and the values of the rank's boxes are `MOMENT-RANK.npz`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from swift.megatron.callbacks import MegatronCallback, megatron_callbacks_map

from swift_diloco.core.layout.boxes import Box, tiling_fault
from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import Layout, TensorSpec, make_layout
from swift_diloco.cpu import cpu_arguments
from swift_diloco.island.ranks.torch_group import TorchGroup
from swift_diloco.trainers.megatron.pieces import MegatronPieces
from swift_diloco.trainers.megatron.step_work import TokenCounter
from tests.trainers.megatron.values import new_values, slices

FRAGMENTS = 3
WRITTEN = (0, 2)
"""Fragments that the probe writes; the one between stays as it is."""
WRITE_AFTER_STEP = 2


class PiecesProbe(MegatronCallback):  # type: ignore[misc]
    """Reads before training, writes back what it read, installs new values after step 2, looks where they went after
    step 3, and has step 4 skip its update."""

    folder: Path

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.report: dict[str, Any] = {"steps": [], "counted": []}
        self.micro_batches: list[int] = []

    def on_train_begin(self) -> None:
        self.group = TorchGroup(timeout_s=60)
        self.tokens = TokenCounter(self.group)
        self.tokens.attach(self.trainer)
        self._count_by_hand()
        self.pieces = MegatronPieces(self.trainer, self.group)
        specs = self._everybodys(list(self.pieces.specs()), list[TensorSpec])
        self.layout: Layout = make_layout([spec for one in specs for spec in one])
        boxes = list(self.pieces.boxes(self.layout))
        everybodys = self._everybodys(boxes, list[Box])
        self.map = PieceMap(self.layout, plan_fragments(self.layout, FRAGMENTS, "binpack"), boxes)
        self.pieces.bind(self.map)
        self.report |= {
            "fingerprint": self.layout.fingerprint,
            "fault": tiling_fault(self.layout, [box for one in everybodys for box in one]),
            "owned": sum(box.elements for box in boxes),
            "shapes": {spec.name: spec.shape for spec in self.layout.tensors},
        }
        self._save_values("begin")

    def on_step_end(self) -> None:
        step = self.state.iteration
        work = self.tokens.take()
        self.report["steps"].append([work.trained, work.tokens])
        self.report["counted"].append(self.micro_batches)
        self.micro_batches = []
        if step == 1:
            self.report["write_back"] = self._write_back()
        if step == WRITE_AFTER_STEP:
            self.pieces.write(self._streams())
            self.pieces.spread(range(FRAGMENTS))
            self.report["wrong"] = self._wrong_places()
        if step == WRITE_AFTER_STEP + 1:
            self.report["moved"] = self._distance_to_written()
            self._skip_updates()
        if step >= self.args.train_iters:
            self._save_values("end")
            (self.folder / f"report-{self.group.rank}.json").write_text(json.dumps(self.report))

    def _count_by_hand(self) -> None:
        """Count the supervised labels of every micro-batch as loaded, before the trainer shifts or cuts them."""
        collate = self.trainer.data_collator

        def counting(examples: Any) -> Any:
            batch = collate(examples)
            self.micro_batches.append(int((batch["labels"] != -100).sum()))
            return batch

        self.trainer.data_collator = counting

    def _skip_updates(self) -> None:
        """From now on the optimizer does as it does when the loss scale overflows: it changes nothing and says so."""
        self.trainer.optimizer.step = lambda: (False, 0.0, 0)

    def _everybodys(self, item: Any, kind: Any) -> list[Any]:
        gathered = self.group.gather(msgspec.msgpack.encode(item))
        everything = self.group.broadcast(msgspec.msgpack.encode(list(gathered)) if gathered else None)
        return [msgspec.msgpack.decode(one, type=kind) for one in msgspec.msgpack.decode(everything, type=list[bytes])]

    def _read(self, fragment: int) -> torch.Tensor:
        out = torch.full((self.map.elements(fragment),), float("nan"))
        self.pieces.read(fragment, out)
        return out

    def _save_values(self, moment: str) -> None:
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for fragment in range(FRAGMENTS):
            stream = self._read(fragment)
            for span in self.map.spans(fragment, 0, len(stream)):
                name = f"{self.layout.tensors[span.box.tensor].name}|{json.dumps(span.box.start)}"
                values = stream[span.offset : span.offset + span.box.elements].view(span.box.shape)
                arrays[name] = values.numpy()
        np.savez(self.folder / f"{moment}-{self.group.rank}.npz", allow_pickle=False, **arrays)

    def _write_back(self) -> dict[str, bool]:
        """Whether writing what was read leaves every bit of masters and parameters."""
        # With overlap_param_gather the parameters are those of the step before: the trainer's own sync comes first.
        if self.args.overlap_param_gather:
            for chunk in self.trainer.wrapped_models:
                chunk.start_param_sync(force_sync=True)
        before = self._bits()
        self.pieces.write({fragment: self._read(fragment) for fragment in range(FRAGMENTS)})
        self.pieces.spread(range(FRAGMENTS))
        return {name: torch.equal(bits, before[name]) for name, bits in self._bits().items()}

    def _bits(self) -> Mapping[str, torch.Tensor]:
        parameters = [p.detach() for model in self.trainer.unwrapped_models for p in model.parameters()]
        masters = [master.values for master in self.pieces._masters]
        return {
            "parameters": torch.cat([p.reshape(-1).view(torch.uint8) for p in parameters]).clone(),
            "masters": torch.cat([m.reshape(-1).view(torch.uint8) for m in masters]).clone(),
        }

    def _streams(self) -> dict[int, torch.Tensor]:
        streams = {}
        for fragment in WRITTEN:
            stream = torch.empty(self.map.elements(fragment))
            for span in self.map.spans(fragment, 0, len(stream)):
                values = new_values(span.box.tensor, self.layout.tensors[span.box.tensor])
                part = values[slices(span.box.start, span.box.shape)]
                stream[span.offset : span.offset + span.box.elements] = part.reshape(-1)
            streams[fragment] = stream
        return streams

    def _wrong_places(self) -> list[str]:
        """Parameters and masters of this rank, owned or copies, that do not hold exactly what was installed."""
        wrong = []
        written = {tensor for fragment in WRITTEN for tensor in self.map.plan.fragments[fragment]}
        for parameter, parts in self.pieces._parts.items():
            for part in parts:
                number = self.layout.index(part.spec.name)
                if number not in written:
                    continue
                local = torch.full(part.shape, float("nan"))
                want = new_values(number, part.spec)[slices(part.start, part.shape)]
                local[slices([0] * want.dim(), want.shape)] = want  # rows added to the vocabulary stay unknown
                flat = local.reshape(-1)
                have = parameter.detach().view(-1)[part.begin : part.end]
                if not _equal_where_known(have, flat.to(parameter.dtype)):
                    wrong.append(f"parameter {part.spec.name}")
                for master in self.pieces._masters:
                    low, high = max(master.begin, part.begin), min(master.end, part.end)
                    if master.parameter is parameter and low < high:
                        values = master.values[low - master.begin : high - master.begin]
                        if not _equal_where_known(values, flat[low - part.begin : high - part.begin]):
                            wrong.append(f"master {part.spec.name}")
        return wrong

    def _distance_to_written(self) -> list[float]:
        """Mean and largest change of the written streams in the step after the write."""
        distances = [(self._read(f) - stream).abs() for f, stream in self._streams().items() if len(stream)]
        everything = torch.cat(distances) if distances else torch.zeros(0)
        return [float(everything.mean()), float(everything.max())] if len(everything) else []


def _equal_where_known(have: torch.Tensor, want: torch.Tensor) -> bool:
    known = ~want.isnan()
    return torch.equal(have[known], want[known])


def main() -> None:
    """Tries the pieces."""
    from swift.megatron import megatron_sft_main

    probe, folder, *argv = sys.argv[1:]
    kind = {"pieces": PiecesProbe}[probe]
    kind.folder = Path(folder)
    megatron_callbacks_map["probe"] = kind
    sys.argv = ["sft.py", *cpu_arguments(argv), "--callbacks", "probe"]
    megatron_sft_main()


def build_tied() -> None:
    """`SOURCE TARGET`: the tiny model with tied embeddings and a vocabulary that two ranks cannot share evenly."""
    import shutil

    from transformers import Qwen3Config, Qwen3ForCausalLM

    source, target = (Path(argument) for argument in sys.argv[1:])
    shutil.copytree(source, target)
    config = Qwen3Config.from_pretrained(source)
    config.tie_word_embeddings = True
    config.vocab_size += 1
    torch.manual_seed(1)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(target)
