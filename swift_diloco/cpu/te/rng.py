"""The random-number state tracker and activation checkpointing of transformer_engine.pytorch.distributed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.utils.checkpoint

DEFAULT_STATE = "model-parallel-rng"


class CudaRNGStatesTracker:
    """Named states of the CPU generator; `fork` runs a block under one of them and keeps the state it ends in."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.states_: dict[str, torch.Tensor] = {}
        self.seeds_: set[int] = set()

    def get_states(self) -> dict[str, torch.Tensor]:
        return dict(self.states_)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        self.states_ = dict(states)

    def add(self, name: str, seed: int) -> None:
        if name in self.states_ or seed in self.seeds_:
            raise ValueError(f"random state {name!r} with seed {seed} is already there; use another name and seed")
        outside = torch.get_rng_state()
        torch.manual_seed(seed)
        self.states_[name], self.seeds_ = torch.get_rng_state(), self.seeds_ | {seed}
        torch.set_rng_state(outside)

    @contextmanager
    def fork(self, name: str = DEFAULT_STATE) -> Iterator[None]:
        if name not in self.states_:
            raise KeyError(f"random state {name!r} was not added; there are {sorted(self.states_)}")
        outside = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(outside)


def checkpoint(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Recompute `function` in backward. Saving activations in parts over TP ranks is left out: it only saves memory."""
    for name in ("distribute_saved_activations", "get_rng_state_tracker", "tp_group"):
        options.pop(name, None)
    return torch.utils.checkpoint.checkpoint(function, *arguments, use_reentrant=False, **options)


def activation_recompute_forward(*_: object, **__: object) -> AbstractContextManager[None]:
    """Only steers FP8 buffers in Transformer Engine."""
    return nullcontext()


def never(*_: object, **__: object) -> bool:
    """For questions about FP8 and recomputation of FP8 values."""
    return False
