"""A syncer's checkpoint of Megatron islands as a model of transformers, through ms-swift's own converter.

ms-swift builds the Megatron model and loads the base into it; the trained tensors are written over the parameters they
are parts of, and mcore-bridge saves the model. So whatever mcore-bridge can convert can be exported, and what was
frozen on the islands is as in the base. One process, on the CPU platform where there is no GPU.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swift_diloco.core.errors import UserError

Tensors = Mapping[str, NDArray[np.float32]]


def export_megatron(tensors: Tensors, base: Path, out: Path, extra: Sequence[str] = ()) -> int:
    """Write the export; how many tensors were written over. `extra` are flags for ms-swift's `megatron export`."""
    words = ["--model", str(base), "--to_hf", "true", "--output_dir", str(out), "--exist_ok", "true"]
    words += ["--check_model", "false", *extra]
    if not torch.cuda.is_available():
        from swift_diloco.cpu import cpu_arguments, install, is_installed

        if not is_installed():
            install()
        words = cpu_arguments(words)
    _be_the_only_rank(os.environ)
    from swift.megatron.pipelines.export.export import MegatronExport

    written: list[int] = []

    class Export(MegatronExport):  # type: ignore[misc]
        """ms-swift's converter, with the trained tensors put in between loading and saving."""

        def convert_mcore2hf(self) -> None:
            _load_between(tensors, written)
            super().convert_mcore2hf()

    Export(words).main()
    if not written:
        raise UserError("ms-swift converted the model without loading the base; was --mcore_model given after --?")
    return written[0]


def _load_between(tensors: Tensors, written: list[int]) -> None:
    """Have every converter write the trained tensors right after it has loaded the base."""
    from mcore_bridge.bridge import GPTBridge

    load = GPTBridge.load_weights

    def load_both(bridge: Any, models: Any, *given: Any, **named: Any) -> Any:
        result = load(bridge, models, *given, **named)
        written.append(overwrite(tensors, models))
        GPTBridge.load_weights = load
        return result

    GPTBridge.load_weights = load_both


@torch.no_grad()
def overwrite(tensors: Tensors, models: Sequence[torch.nn.Module]) -> int:
    """Write global tensors over the parameters of a whole Megatron model; how many. Raises `UserError` on a misfit."""
    from swift_diloco.trainers.megatron.sharded_state import model_parts

    config: Any = models[0].config
    left = set(tensors)
    for parameter, parts in model_parts(models, config.padded_vocab_size).items():
        flat = parameter.detach().view(-1)
        for part in parts:
            tensor = tensors.get(part.spec.name)
            if tensor is None:
                continue  # frozen on the islands
            if tensor.shape != part.spec.shape:
                raise UserError(
                    f"tensor {part.spec.name!r} has shape {list(tensor.shape)} in the checkpoint and "
                    f"{list(part.spec.shape)} in the model of --hf; give the model that the islands trained"
                )
            left.discard(part.spec.name)
            begins = zip(part.start, part.shape, tensor.shape, strict=True)
            box = tuple(slice(start, min(start + size, whole)) for start, size, whole in begins)
            values = torch.from_numpy(tensor[box].copy()).reshape(-1)
            # What sticks out of the tensor are rows that pad the vocabulary: the last ones, which belong to nobody.
            flat[part.begin : part.begin + values.numel()] = values.to(parameter.dtype)
    if left:
        raise UserError(
            f"the checkpoint has {len(left)} tensors that the model of --hf has not, such as {min(left)!r}; "
            "give the model that the islands trained (adapters cannot be exported this way)"
        )
    return len(tensors)


def _be_the_only_rank(environ: Any) -> None:
    """What torchrun would set for one process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in {**alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        environ.setdefault(name, value)
    sys.stdout.flush()
