"""The island's tensors: anchor values, and the arithmetic of capture and install on this rank's streams.

One anchor buffer per fragment (f32, host, this rank's pieces only). Knows no messages and no sockets; the session
decided.
All arithmetic is elementwise float32, one rounding per operation, so it gives the same bits on every layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from swift_diloco.buffers import HostBuffers, Values, tensor_of
from swift_diloco.core.layout import PieceMap
from swift_diloco.events import Align
from swift_diloco.model import ModelPieces, ReadsChanges


@dataclass(frozen=True)
class Arrival:
    """A value to install: the raw global values of this rank's stream, and how to align what is in the model."""

    fragment: int
    values: Values
    align: Align
    alpha: float


class AnchorStore:
    """See the module."""

    def __init__(self, model: ModelPieces, pieces: PieceMap, buffers: HostBuffers) -> None:
        self._model = model
        self._pieces = pieces
        self._buffers = buffers
        self._anchors: dict[int, Values] = {}
        self._captured: dict[int, Values] = {}

    def adopt(self, anchors: Mapping[int, Values]) -> None:
        """Anchor values read from a checkpoint."""
        self._anchors.update(anchors)

    @property
    def anchors(self) -> Mapping[int, Values]:
        """Every anchor, by fragment; not to be changed."""
        return self._anchors

    def anchor(self, fragment: int) -> Values:
        """The raw global values last installed."""
        return self._anchors[fragment]

    def anchor_here(self, fragment: int) -> Values:
        """The anchor; where there is none yet, the present values become it (initial values are provided from it)."""
        if fragment not in self._anchors:
            self._anchors[fragment] = self._local(fragment)
        return self._anchors[fragment]

    def capture(self, fragment: int, *, keep: bool = False) -> Values:
        """Local minus anchor, in a buffer of its own; kept for an install that carries the progress made since."""
        anchor = self._anchors[fragment]
        if isinstance(self._model, ReadsChanges):
            delta = self._buffers.take(self._pieces.elements(fragment))
            self._model.read_change(fragment, tensor_of(anchor), tensor_of(delta))
        else:
            delta = self._local(fragment)
            tensor_of(delta).sub_(tensor_of(anchor))
        if keep:
            self._captured[fragment] = delta
        return delta

    def free(self, values: Values) -> None:
        """A captured delta that is not needed for an upload any more."""
        if not any(kept is values for kept in self._captured.values()):
            self._buffers.give(values)

    def install(self, arrivals: Sequence[Arrival]) -> None:
        """Write values into the model in one go; each becomes its fragment's anchor. Collective over the ranks."""
        written = {a.fragment: self._aligned(a) for a in arrivals if a.align is not Align.KEEP}
        if written:
            self._model.write({fragment: tensor_of(values) for fragment, values in written.items()})
        for arrival in arrivals:
            blended = written.get(arrival.fragment, arrival.values)
            if blended is not arrival.values:
                self._buffers.give(blended)
            self._captured.pop(arrival.fragment, None)
            old = self._anchors.get(arrival.fragment)
            self._anchors[arrival.fragment] = arrival.values
            if old is not None and old is not arrival.values:
                self._buffers.give(old)

    def _local(self, fragment: int) -> Values:
        values = self._buffers.take(self._pieces.elements(fragment))
        self._model.read(fragment, tensor_of(values))
        return values

    def _aligned(self, arrival: Arrival) -> Values:
        if arrival.align in (Align.OVERWRITE, Align.ANCHOR) or arrival.values.size == 0:
            return arrival.values
        local_values = self._local(arrival.fragment)
        local, new = tensor_of(local_values), tensor_of(arrival.values)
        if arrival.align is Align.BLEND:
            local.mul_(arrival.alpha).add_(new * (1.0 - arrival.alpha))
        else:
            old = tensor_of(self._anchors[arrival.fragment])
            if arrival.align is Align.CARRY:
                old = old + tensor_of(self._captured[arrival.fragment])
            _shift(local, old, new)
        return local_values


def _shift(local: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> None:
    """local <- new + (local - old), except that an element whose global value did not change keeps its bits."""
    shifted = new + (local - old)
    torch.where(new == old, local, shifted, out=local)
