"""The island's tensors: anchor values, and the arithmetic of capture and install on this rank's streams.

One anchor buffer per fragment (f32, host, this rank's pieces only). Knows no messages and no sockets; the session
decided. All arithmetic is elementwise float32, one rounding per operation, so it gives the same bits on every layout.

Training waits for a capture no longer than the local values take to be copied; the anchor is subtracted from the copy
on another thread. Invariant: no anchor is replaced and no delta is read before `await_deltas`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.island.events import Align
from swift_diloco.island.numbers.host_buffers import HostBuffers, Values, tensor_of
from swift_diloco.island.numbers.model_pieces import ModelPieces

BLOCK_ELEMENTS = 1 << 18
"""Elements of an install worked on at once: 1 MiB, so that what lies between two operations stays in the cache and
never needs memory of its own."""


@dataclass(frozen=True)
class Arrival:
    """A value to install: the raw global values of this rank's stream, and how to align what is in the model."""

    fragment: int
    values: Values
    align: Align
    alpha: float


class AnchorStore:
    """The anchor values of one rank, and what is measured from them."""

    def __init__(self, model: ModelPieces, pieces: PieceMap, buffers: HostBuffers) -> None:
        self._model = model
        self._pieces = pieces
        self._buffers = buffers
        self._anchors: dict[int, Values] = {}
        self._captured: dict[int, Values] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="deltas")
        self._deltas: list[Future[None]] = []

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

    def anchor_or_present(self, fragment: int) -> Values:
        """The anchor; where there is none yet, the present values become it (initial values are provided from it)."""
        if fragment not in self._anchors:
            self._anchors[fragment] = self._local(fragment)
        return self._anchors[fragment]

    def capture(self, fragment: int, ready: Callable[[Values], None], *, keep: bool = False) -> None:
        """Snapshot the local values now, and soon give `ready` local minus anchor, in a buffer of its own, on another
        thread. `keep` it for an install that carries the progress made since."""
        anchor = self._anchors[fragment]
        delta = self._local(fragment)
        if keep:
            self._captured[fragment] = delta

        def finish() -> None:
            tensor_of(delta).sub_(tensor_of(anchor))
            ready(delta)

        self._deltas.append(self._worker.submit(finish))

    def await_deltas(self) -> None:
        """Wait until every delta that was captured is ready; raises what went wrong with one."""
        while self._deltas:
            self._deltas.pop().result()

    def free(self, values: Values) -> None:
        """A captured delta that is not needed for an upload any more."""
        if not any(kept is values for kept in self._captured.values()):
            self._buffers.give(values)

    def install(self, arrivals: Sequence[Arrival]) -> None:
        """Write values into this rank's part of the model in one go; each becomes its fragment's anchor."""
        self.await_deltas()
        written = {a.fragment: self._aligned(a) for a in arrivals if a.align is not Align.KEEP}
        if written:
            self._model.write({fragment: tensor_of(values) for fragment, values in written.items()})
        for arrival in arrivals:
            self._captured.pop(arrival.fragment, None)
            old = self._anchors.get(arrival.fragment)
            self._anchors[arrival.fragment] = arrival.values
            if old is not None and old is not arrival.values:
                self._buffers.give(old)

    def spread(self, fragments: Collection[int]) -> None:
        """Have every rank's copies of these fragments hold what was installed. Collective over the ranks."""
        self._model.spread(fragments)

    def _local(self, fragment: int) -> Values:
        values = self._buffers.take(self._pieces.elements(fragment))
        self._model.read(fragment, tensor_of(values))
        return values

    def _aligned(self, arrival: Arrival) -> Values:
        """What is to be written. It lies in the old anchor's buffer, which nobody needs any more: however many
        fragments arrive at once, only one has its local values copied at a time."""
        if arrival.align in (Align.OVERWRITE, Align.ANCHOR) or arrival.values.size == 0:
            return arrival.values
        local_values, old_values = self._local(arrival.fragment), self._anchors[arrival.fragment]
        local, old, new = tensor_of(local_values), tensor_of(old_values), tensor_of(arrival.values)
        if arrival.align is Align.BLEND:
            _by_block(lambda out, here, there: _blend(out, here, there, arrival.alpha), old, local, new)
        elif arrival.align is Align.CARRY:
            captured = tensor_of(self._captured[arrival.fragment])
            _by_block(lambda base, here, there, more: _shift(base.add_(more), here, there), old, local, new, captured)
        else:
            _by_block(_shift, old, local, new)
        self._buffers.give(local_values)
        return old_values


def _by_block(operation: Callable[..., None], *tensors: torch.Tensor) -> None:
    """Do an elementwise operation part by part; it writes into the first tensor."""
    for parts in zip(*(torch.split(tensor, BLOCK_ELEMENTS) for tensor in tensors), strict=True):
        operation(*parts)


def _blend(out: torch.Tensor, local: torch.Tensor, new: torch.Tensor, alpha: float) -> None:
    """out <- alpha * local + (1 - alpha) * new. Uses up `local`."""
    torch.add(local.mul_(alpha), new * (1.0 - alpha), out=out)


def _shift(old: torch.Tensor, local: torch.Tensor, new: torch.Tensor) -> None:
    """old <- new + (local - old), except that an element whose global value did not change keeps its bits."""
    shifted = new + (local - old)
    torch.where(new == old, local, shifted, out=old)
