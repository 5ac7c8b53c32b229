"""The FP32 copies of low-precision weights beside a trainer checkpoint, so that a restart does not round them away.

Each rank writes those of its own shares; a job with another number of ranks reads what it needs from all files. They
cost 4 bytes per trained element on disk, and are left out with the optimizer's state (`--save_only_model`). Knows
files and flat ranges, nothing of the trainer. A set of files that is not whole counts as none: then the weights of the
checkpoint, which are these values rounded, are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from swift_diloco.core.files.whole_files import replaced

FILE = "diloco_masters_{rank:05d}.safetensors"

Range = tuple[int, int, torch.Tensor]
"""The elements [begin, end) of a tensor, flat."""


def save_masters(folder: Path, masters: Mapping[str, Range], step: int, rank: int, ranks: int) -> None:
    """Write one rank's copies, whole."""
    places = {f"begin:{name}": str(begin) for name, (begin, _, _) in masters.items()}
    facts = {"step": str(step), "ranks": str(ranks), **places}
    with replaced(folder / FILE.format(rank=rank)) as temporary:
        save_file({name: values for name, (_, _, values) in masters.items()}, temporary, metadata=facts)


def load_masters(folder: Path, wanted: Mapping[str, Range], step: int) -> str | None:
    """Fill the wanted ranges from all ranks' files. Returns why that is not possible; then nothing was changed."""
    try:
        ranks = _ranks(folder, step)
        found = {name: torch.empty_like(values) for name, (_, _, values) in wanted.items()}
        filled = dict.fromkeys(wanted, 0)
        for rank in range(ranks):
            with safe_open(folder / FILE.format(rank=rank), framework="pt") as file:
                _check(file.metadata(), step, ranks)
                for name in sorted(set(file.keys()) & set(wanted)):
                    begin, end, _ = wanted[name]
                    filled[name] += _take(file, name, begin, end, found[name])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        return str(error)
    short = next((name for name, (begin, end, _) in wanted.items() if filled[name] != end - begin), None)
    if short is not None:
        return f"the files do not hold all of {short!r}"
    for name, (_, _, values) in wanted.items():
        values.copy_(found[name])
    return None


def _ranks(folder: Path, step: int) -> int:
    path = folder / FILE.format(rank=0)
    if not path.exists():
        raise ValueError("none were saved")
    with safe_open(path, framework="pt") as file:
        return int(file.metadata()["ranks"])


def _check(facts: Mapping[str, str], step: int, ranks: int) -> None:
    found = (int(facts["step"]), int(facts["ranks"]))
    if found != (step, ranks):
        raise ValueError(f"a file is of step {found[0]} and {found[1]} ranks; expected step {step} and {ranks} ranks")


def _take(file: Any, name: str, begin: int, end: int, out: torch.Tensor) -> int:
    """Copy what the file has of the range [begin, end); how many elements that were."""
    first = int(file.metadata()[f"begin:{name}"])
    stored = file.get_slice(name)
    low, high = max(begin, first), min(end, first + int(stored.get_shape()[0]))
    if low >= high:
        return 0
    out[low - begin : high - begin] = stored[low - first : high - first]
    return high - low
