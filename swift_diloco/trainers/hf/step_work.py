"""How much an island trained in a local step: supervised tokens, and whether the optimizer took the step at all.

A transformers trainer fetches all batches of one update in `get_batch_samples`; that method of the one trainer is
wrapped, and the labels are counted there as the loss sees them (shifted by one, -100 left out). The update was taken
when the mixed-precision scaler did not skip it and there were gradients: ms-swift drops them all when their norm is
NaN, and the step number advances all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from swift_diloco.core.errors import UserError
from swift_diloco.island.ranks.rank_group import RankGroup
from swift_diloco.trainers.step_work import StepWork, agree_on_work

IGNORED = -100
"""The label of a token that is not supervised, in all of transformers."""


def supervised_tokens(batches: Iterable[Mapping[str, Any]]) -> torch.Tensor | int:
    """Labels of the batches that the loss looks at."""
    total: torch.Tensor | int = 0
    for batch in batches:
        labels = batch.get("labels")
        if labels is None:
            raise UserError(
                f"a batch has {sorted(batch)} and no labels; islands weigh their work by supervised tokens and need "
                "a causal language model's labels"
            )
        total = total + (labels[..., 1:] != IGNORED).sum()
    return total


class WorkCounter:
    """Watches the steps of one trainer. Attaching changes the trainer object alone, not its class."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._batches: Sequence[Mapping[str, Any]] | None = None
        self._had_gradients = False

    def attach(self, trainer: Any) -> None:
        original = trainer.get_batch_samples

        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            fetched = original(*args, **kwargs)
            # The labels are kept, not the batches: the trainer takes those apart.
            self._batches = [{"labels": b["labels"]} if "labels" in b else dict.fromkeys(b) for b in fetched[0]]
            return fetched

        trainer.get_batch_samples = get_batch_samples

    def optimizer_is_due(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Just before the optimizer steps, gradients clipped."""
        self._had_gradients = any(parameter.grad is not None for parameter in parameters)

    def take(self, *, skipped: bool) -> StepWork:
        """The work of the step that just ended, on all ranks. Collective; the count begins anew."""
        trained_here = self._had_gradients and not skipped
        tokens_here = int(supervised_tokens(self._batches or ())) if trained_here else 0
        self._batches, self._had_gradients = None, False
        return agree_on_work(self._group, trained=trained_here, tokens=tokens_here)
