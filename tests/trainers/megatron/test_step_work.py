"""Tokens are read from the loss function's own sums."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from swift_diloco.core.errors import InternalError, UserError
from swift_diloco.island.ranks.torch_group import LoneRank
from swift_diloco.trainers.megatron.step_work import TokenCounter, supervised_tokens
from swift_diloco.trainers.step_work import StepWork


def test_tokens_of_all_micro_batches_are_added() -> None:
    metrics = [{"loss": torch.tensor([12.5, 7.0])}, {"loss": torch.tensor([3.5, 1048577.0]), "acc": torch.tensor(0.5)}]
    assert supervised_tokens(metrics) == 1048584


def test_earlier_pipeline_stages_have_none() -> None:
    assert supervised_tokens([]) == 0


def test_loss_without_a_number_of_tokens_is_refused() -> None:
    with pytest.raises(UserError, match=r"reports \['acc', 'loss'\] without a sum of loss"):
        supervised_tokens([{"loss": torch.tensor(1.0), "acc": torch.tensor(0.5)}])


class _Trainer:
    """A trainer whose optimizer skips every update."""

    def train_step(self, data: str) -> tuple[list[dict[str, torch.Tensor]], float, bool]:
        return [{"loss": torch.tensor([1.0, 5.0])}], 0.5, False


def test_skipped_update_counts_no_step_and_no_tokens() -> None:
    counter, trainer = TokenCounter(LoneRank()), _Trainer()
    counter.attach(trainer)
    metrics, grad_norm, successful = trainer.train_step("batch")
    assert (len(metrics), grad_norm, successful) == (1, 0.5, False)
    assert counter.take() == StepWork(trained=False, tokens=0)


def test_ranks_that_disagree_about_the_update_are_an_error() -> None:
    class Half(LoneRank):
        size = 2

        def sums(self, numbers: Sequence[int]) -> list[int]:
            return [10, 1]

    with pytest.raises(InternalError, match="took this step on 1 of 2 ranks"):
        TokenCounter(Half()).take()
