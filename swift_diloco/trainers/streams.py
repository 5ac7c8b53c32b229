"""What the model pieces of all trainers check and wait for when they fill or take a rank's stream of a fragment."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def check_stream(fragment: int, stream: torch.Tensor, elements: int) -> None:
    """Raise unless `stream` is what the island promises to hand over."""
    if stream.shape != (elements,) or stream.dtype != torch.float32:
        raise ValueError(
            f"the stream of fragment {fragment} is {stream.dtype} of shape {list(stream.shape)}; "
            f"expected float32 of [{elements}]"
        )


def await_copies(devices: Iterable[torch.device]) -> None:
    """Wait for copies between devices and pinned host memory, so that the caller may use or reuse its buffer."""
    for device in set(devices):
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
