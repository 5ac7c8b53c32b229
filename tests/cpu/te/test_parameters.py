"""How parameters are made, filled and marked."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from swift_diloco.cpu.te.parameters import Initialiser, mark_sequence_parallel, mark_tensor_parallel, new_parameter


class Tracker:
    """Notes which of its states were forked, and whether one is."""

    def __init__(self) -> None:
        self.forks: list[tuple[str, ...]] = []
        self.inside = False

    @contextmanager
    def fork(self, *names: str) -> Iterator[None]:
        self.forks.append(names)
        self.inside = True
        yield
        self.inside = False


def test_parameter_is_on_the_cpu_unless_it_is_to_have_no_values() -> None:
    made = new_parameter((2, 3), torch.bfloat16, "cuda:0", fill=1.5)
    assert (made.device.type, made.dtype, made.tolist()) == ("cpu", torch.bfloat16, [[1.5] * 3] * 2)
    assert new_parameter((2,), None, "meta").is_meta
    assert new_parameter((2,), None, "cpu").dtype == torch.get_default_dtype()


def test_initialiser_draws_inside_the_fork_of_its_tracker() -> None:
    tracker = Tracker()
    drawn: list[bool] = []

    def method(weight: torch.Tensor) -> None:
        drawn.append(tracker.inside and not torch.is_grad_enabled())
        weight.fill_(2.0)

    weight = new_parameter((3,), None, "cpu", fill=0.0)
    Initialiser(method, lambda: tracker, "experts").fill(weight)
    Initialiser(method, lambda: tracker).fill(weight)
    assert (drawn, tracker.forks, weight.tolist()) == ([True, True], [("experts",), ()], [2.0] * 3)
    Initialiser(method).fill(weight)
    assert drawn[2:] == [False]


def test_initialiser_leaves_a_parameter_without_values_and_one_without_a_method_alone() -> None:
    weight = new_parameter((3,), None, "cpu", fill=1.0)
    Initialiser().fill(weight)
    assert weight.tolist() == [1.0] * 3
    Initialiser(lambda _: 1 / 0).fill(new_parameter((3,), None, "meta"))


def test_marks_are_those_that_megatron_sums_by() -> None:
    cut, replicated = (new_parameter((2,), None, "cpu", fill=0.0) for _ in range(2))
    mark_tensor_parallel(cut, 1)
    mark_sequence_parallel(replicated, True)
    assert vars(cut) == {"tensor_model_parallel": True, "partition_dim": 1, "partition_stride": 1}
    assert vars(replicated) == {"sequence_parallel": True}
