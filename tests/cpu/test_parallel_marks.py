"""Marking Megatron's own tensor-parallel weights."""

from types import ModuleType

import torch

from swift_diloco.cpu.parallel_marks import CUT_DIMENSIONS, mark_weights


class Layer(torch.nn.Module):
    """A layer as Megatron makes it without initialisation: the weight has no mark."""

    def __init__(self, rows: int, *, with_weight: bool = True) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(rows, 2)) if with_weight else None


def layers_module() -> ModuleType:
    module = ModuleType("layers")
    for name in CUT_DIMENSIONS:
        setattr(module, name, type(name, (Layer,), {"__init__": Layer.__init__}))
    return module


def test_each_layer_is_marked_along_its_cut_dimension() -> None:
    layers = layers_module()
    mark_weights(layers)
    cuts = {name: getattr(layers, name)(4).weight.partition_dim for name in CUT_DIMENSIONS}
    assert cuts == {"VocabParallelEmbedding": 0, "ColumnParallelLinear": 0, "RowParallelLinear": 1}
    assert layers.ColumnParallelLinear(4).weight.tensor_model_parallel is True


def test_a_layer_without_a_weight_is_left_alone() -> None:
    layers = layers_module()
    mark_weights(layers)
    assert layers.ColumnParallelLinear(4, with_weight=False).weight is None


def test_a_mark_that_is_there_stays() -> None:
    layers = layers_module()
    original = layers.RowParallelLinear.__init__

    def initialise(self: Layer, rows: int) -> None:
        original(self, rows)
        self.weight.tensor_model_parallel = False  # type: ignore[union-attr]

    layers.RowParallelLinear.__init__ = initialise
    mark_weights(layers)
    assert layers.RowParallelLinear(4).weight.tensor_model_parallel is False
