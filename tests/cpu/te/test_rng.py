"""Random-number states and activation checkpointing."""

import pytest
import torch

from swift_diloco.cpu.te.rng import DEFAULT_STATE, CudaRNGStatesTracker, checkpoint, never


def test_a_fork_goes_on_where_the_last_one_ended_and_leaves_the_outside_alone() -> None:
    tracker, outside = CudaRNGStatesTracker(), torch.get_rng_state()
    tracker.add(DEFAULT_STATE, 7)
    drawn = []
    for _ in range(2):
        with tracker.fork():
            drawn.append(torch.rand(2))
    assert torch.equal(torch.get_rng_state(), outside)
    generator = torch.Generator().manual_seed(7)
    assert torch.equal(torch.cat(drawn), torch.cat([torch.rand(2, generator=generator) for _ in range(2)]))


def test_states_can_be_saved_and_restored() -> None:
    tracker = CudaRNGStatesTracker()
    tracker.add("a", 1)
    saved = tracker.get_states()
    with tracker.fork("a"):
        first = torch.rand(1)
    tracker.set_states(saved)
    with tracker.fork("a"):
        assert torch.equal(torch.rand(1), first)


def test_a_name_or_seed_is_used_once_and_must_be_known() -> None:
    tracker = CudaRNGStatesTracker()
    tracker.add("a", 1)
    with pytest.raises(ValueError, match="'a' with seed 2"):
        tracker.add("a", 2)
    with pytest.raises(ValueError, match="'b' with seed 1"):
        tracker.add("b", 1)
    with pytest.raises(KeyError, match="'c' was not added"), tracker.fork("c"):
        pass


def test_checkpointing_gives_the_same_gradient_and_recomputes() -> None:
    calls: list[int] = []

    def square(values: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return values**2

    values = torch.tensor([3.0], requires_grad=True)
    checkpoint(square, values, distribute_saved_activations=False, get_rng_state_tracker=None, tp_group=None).backward()
    assert values.grad is not None and values.grad.item() == 6.0 and len(calls) == 2


def test_fp8_is_never_on() -> None:
    assert never() is False
