"""How much an island trained in a local step: supervised tokens, and whether the optimizer took the step at all.

ms-swift's `on_step_end` knows neither: the iteration advances when an update is skipped, too, and metrics are added up
later. So the trainer's `train_step` is wrapped. It returns, per micro-batch, the loss function's own sums, `[loss,
supervised tokens]` (labels that are not -100 after the shift by one), on the last pipeline stage, and whether the
update was successful.

Counted where the labels are once: on the last pipeline stage and tensor parallel rank 0, then summed over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swift_diloco.core.errors import UserError
from swift_diloco.island.ranks.rank_group import RankGroup
from swift_diloco.trainers.step_work import StepWork, agree_on_work


def supervised_tokens(metrics: Sequence[Mapping[str, Any]]) -> int:
    """Supervised tokens in what the forward passes of one rank returned (nothing before the last pipeline stage)."""
    total = 0
    for one in metrics:
        loss = one.get("loss")
        if loss is None or loss.numel() != 2:
            raise UserError(
                f"the loss function reports {sorted(one)} without a sum of loss and a number of tokens under 'loss'; "
                "islands weigh their work by supervised tokens and need ms-swift's causal language model loss"
            )
        total += int(loss[1])
    return total


class TokenCounter:
    """Watches the steps of one trainer. Attaching changes the trainer object alone, not its class."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self._tokens = 0
        self._trained = False

    def attach(self, trainer: Any) -> None:
        original = trainer.train_step

        def train_step(*args: Any, **kwargs: Any) -> Any:
            metrics, grad_norm, update_successful = original(*args, **kwargs)
            self._trained = bool(update_successful)
            self._tokens = supervised_tokens(metrics) if self._trained and _labels_are_counted_here() else 0
            return metrics, grad_norm, update_successful

        trainer.train_step = train_step

    def take(self) -> StepWork:
        """The work of the step that just ended, on all ranks. Collective; the count begins anew."""
        tokens, trained = self._tokens, self._trained
        self._tokens, self._trained = 0, False
        return agree_on_work(self._group, trained=trained, tokens=tokens)


def _labels_are_counted_here() -> bool:
    from megatron.core import mpu

    return bool(mpu.is_pipeline_last_stage(ignore_virtual=True)) and mpu.get_tensor_model_parallel_rank() == 0
