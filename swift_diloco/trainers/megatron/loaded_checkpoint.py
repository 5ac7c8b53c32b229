"""Which checkpoint ms-swift's Megatron trainer really resumed from.

The trainer asks several flags in turn and the last one that is given decides the iteration (`_load_checkpoint` and
`_load_iteration` in `swift/megatron/trainers/base.py`): the safetensors beside an iteration tracker, then
`--mcore_model`, then `--mcore_adapter`. With `--finetune true` the iteration is 0, and nothing was resumed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def loaded_checkpoint(args: Any, iteration: int) -> Path | None:
    """The folder `checkpoint-N` from which the job goes on at `iteration`; None for a fresh start."""
    if iteration <= 0:
        return None
    safetensors = args.model
    if args.tuner_type != "full" and args.adapters:
        safetensors = args.adapters[0]
    folder = args.mcore_adapter or args.mcore_model or safetensors
    return Path(folder) if folder else None
