"""Averaging on top of a backend that only sums."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from swift_diloco.cpu.collectives import _averaging, _with_listed_splits

WORLD = 4


class FakeBackend:
    """An all-reduce of equal tensors over four ranks, which cannot average."""

    def __init__(self) -> None:
        self.ops: list[object] = []

    def all_reduce(
        self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: object = None, async_op: bool = False
    ) -> str:
        assert op != dist.ReduceOp.AVG
        self.ops.append(op)
        if op == dist.ReduceOp.SUM:
            tensor.mul_(WORLD)
        return "work"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: WORLD)
    return FakeBackend()


@pytest.mark.parametrize("by_keyword", [True, False])
def test_an_average_is_the_sum_over_the_group_s_size(backend: FakeBackend, by_keyword: bool) -> None:
    all_reduce, tensor = _averaging(backend.all_reduce, 1), torch.tensor([3.0])
    if by_keyword:
        all_reduce(tensor=tensor, op=dist.ReduceOp.AVG)
    else:
        all_reduce(tensor, dist.ReduceOp.AVG)
    assert tensor.item() == 3.0 and backend.ops == [dist.ReduceOp.SUM]


def test_other_operations_are_passed_on(backend: FakeBackend) -> None:
    all_reduce, tensor = _averaging(backend.all_reduce, 1), torch.tensor([3.0])
    assert all_reduce(tensor) == "work" and all_reduce(tensor, op=dist.ReduceOp.MAX, async_op=True) == "work"
    assert tensor.item() == 3.0 * WORLD and backend.ops == [dist.ReduceOp.SUM, dist.ReduceOp.MAX]


def test_an_asynchronous_average_is_refused(backend: FakeBackend) -> None:
    with pytest.raises(ValueError, match="asynchronous averaging"):
        _averaging(backend.all_reduce, 1)(torch.tensor([3.0]), op=dist.ReduceOp.AVG, async_op=True)
    assert backend.ops == []


def test_split_sizes_given_as_tensors_become_lists() -> None:
    calls: list[tuple[Any, ...]] = []

    def all_to_all_single(*args: Any, **kwargs: Any) -> None:
        calls.append((*args[2:], kwargs))

    collective, data = _with_listed_splits(all_to_all_single), torch.zeros(3)
    collective(data, data, torch.tensor([1, 2]), [3, 0], group=None)
    collective(data, data, output_split_sizes=torch.tensor([1, 2]), input_split_sizes=None)
    assert calls == [
        ([1, 2], [3, 0], {"group": None}),
        ({"output_split_sizes": [1, 2], "input_split_sizes": None},),
    ]
