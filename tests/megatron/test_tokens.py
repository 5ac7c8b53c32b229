"""Tokens are read from the loss function's own sums."""

from __future__ import annotations

import pytest
import torch

from swift_diloco.core.errors import UserError
from swift_diloco.megatron.tokens import supervised_tokens


def test_tokens_of_all_micro_batches_are_added() -> None:
    metrics = [{"loss": torch.tensor([12.5, 7.0])}, {"loss": torch.tensor([3.5, 1048577.0]), "acc": torch.tensor(0.5)}]
    assert supervised_tokens(metrics) == 1048584


def test_earlier_pipeline_stages_have_none() -> None:
    assert supervised_tokens([]) == 0


def test_loss_without_a_number_of_tokens_is_refused() -> None:
    with pytest.raises(UserError, match=r"reports \['acc', 'loss'\] without a sum of loss"):
        supervised_tokens([{"loss": torch.tensor(1.0), "acc": torch.tensor(0.5)}])
