"""The global tensors of a Megatron model, from the model's own sharded state dict (`sharded_state_dict` of
megatron-core).

Megatron describes there, for its distributed checkpoints, which box of which global tensor each local tensor is.
With `singleton_local_shards` the keys come per layer under their global layer number, and the two halves of a fused
SwiGLU come apart, so the names and shapes depend on the model alone. This module turns that into parts (`parts.py`)
of the parameters.

Only trainable parameters are in the layout. What else the state dict exports must not change while training: frozen
parameters and integer tables do not; a floating-point buffer may (the bias of a mixture-of-experts router) and is
refused. Does not know the optimizer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

from swift_diloco.core.errors import UserError
from swift_diloco.core.layout.tensors import Index, TensorSpec, merge_rule_of
from swift_diloco.trainers.megatron.parts import Part, check_parts


class _Addresses:
    """Finds the parameter in whose memory a tensor lies. Halves of a fused parameter are views into it."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        filled = [p for p in parameters if p.numel()]
        self._parameters = sorted(filled, key=lambda p: p.data_ptr())
        self._starts = [p.data_ptr() for p in self._parameters]

    def find(self, data: torch.Tensor) -> tuple[torch.nn.Parameter, int] | None:
        """The parameter and the flat element of it at which `data` begins; None when it lies in no parameter."""
        i = bisect_right(self._starts, data.data_ptr()) - 1
        if i < 0:
            return None
        parameter = self._parameters[i]
        offset = data.data_ptr() - self._starts[i]
        if offset >= parameter.numel() * parameter.element_size():
            return None
        return parameter, offset // parameter.element_size()


def model_parts(models: Sequence[torch.nn.Module], vocabulary: int) -> dict[torch.nn.Parameter, list[Part]]:
    """The parts of every trainable parameter of this rank's model chunks, sorted by where they begin.

    `vocabulary`: rows of the embedding and of the output head without those added to split them evenly over the ranks.
    """
    found: dict[torch.nn.Parameter, list[Part]] = {}
    for model in models:
        named = dict(model.named_parameters())
        addresses = _Addresses(list(named.values()))
        names = {parameter: name for name, parameter in named.items()}
        # A fresh dict each time: Megatron adds its process groups to the one it is given.
        exported = model.sharded_state_dict(metadata={"singleton_local_shards": True})  # type: ignore[operator]
        for entry in _entries(exported):
            _place(entry, addresses, names, vocabulary, found)
        for name, parameter in named.items():
            if parameter.requires_grad:
                parts = sorted(set(found.get(parameter, [])), key=lambda part: part.begin)
                check_parts(name, parameter.numel(), parts)
                found[parameter] = parts
    return found


def _entries(exported: Any) -> Iterator[ShardedTensor]:
    """All sharded tensors of a (nested) state dict, factories built; opaque objects such as `_extra_state` left out."""
    if isinstance(exported, ShardedTensorFactory):
        exported = exported.build()
    if isinstance(exported, ShardedTensor):
        if exported.data is not None and not exported.key.endswith("_extra_state"):
            yield exported
    elif isinstance(exported, list | tuple | Mapping):
        for item in exported.values() if isinstance(exported, Mapping) else exported:
            yield from _entries(item)


def _place(
    entry: ShardedTensor,
    addresses: _Addresses,
    names: Mapping[torch.nn.Parameter, str],
    vocabulary: int,
    found: dict[torch.nn.Parameter, list[Part]],
) -> None:
    place = addresses.find(entry.data)
    if place is None:
        if entry.data.is_floating_point() and entry.data.numel():
            raise UserError(
                f"the model exports {entry.key!r}, a floating-point buffer that is no parameter and that training may "
                "change; models with such buffers cannot be trained on islands yet"
            )
        return
    parameter, begin = place
    if not parameter.requires_grad:
        return
    if not entry.data.is_contiguous():
        raise UserError(
            f"{entry.key!r} is not a contiguous range of parameter {names[parameter]!r}; expected Megatron to cut "
            "fused parameters along their first dimension; this model cannot be trained on islands yet"
        )
    found.setdefault(parameter, []).append(_part(entry, begin, vocabulary))


def _part(entry: ShardedTensor, begin: int, vocabulary: int) -> Part:
    # A local tensor lacks the axes that Megatron prepends to tell stacked tensors apart.
    shape: Index = (*(1 for _ in range(entry.prepend_axis_num)), *entry.local_shape)
    spec = TensorSpec(entry.key, global_shape(entry, vocabulary), merge_rule_of(entry.key))
    *others, over_dp = _coordinates(entry.replica_id)
    return Part(
        begin=begin,
        end=begin + prod(shape),
        spec=spec,
        start=tuple(entry.global_offset),
        shape=shape,
        main=not any(others),
        main_over_dp=over_dp == 0,
    )


def global_shape(entry: ShardedTensor, vocabulary: int) -> Index:
    """Global shape without added vocabulary rows, which Megatron marks by allowing another shape when it loads."""
    shape: Index = tuple(entry.global_shape)
    if not entry.allow_shape_mismatch:
        return shape
    pieces = entry.axis_fragmentations[0] if entry.axis_fragmentations else 1
    padded = -(-vocabulary // pieces) * pieces
    if shape[0] != padded:
        raise UserError(
            f"tensor {entry.key!r} has {shape[0]} rows over {pieces} ranks; expected {vocabulary} rows of vocabulary, "
            f"padded to {padded}; a model with another kind of padding cannot be trained on islands yet"
        )
    return (vocabulary, *shape[1:])


def _coordinates(replica_id: int | tuple[int, ...]) -> tuple[int, ...]:
    """Replica coordinates, the last one over data parallel ranks, as megatron-core builds them (`core/utils.py`)."""
    return (replica_id, 0) if isinstance(replica_id, int) else tuple(replica_id)
