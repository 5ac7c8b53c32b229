"""Host memory for values on their way: float32 buffers that are reused, pinned where a CUDA device will copy to or
from them.

Buffers are numpy views (for ZeroMQ and the codec) of torch tensors (for the device copies); `tensor_of` gives the other
view without a copy. Not shared between processes.
"""

from __future__ import annotations

import threading
import weakref
from typing import TypeAlias

import numpy as np
import torch

Values: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float32]]"

SPARE_BUFFERS_MAX = 4
"""Unused buffers kept in all: two that a boundary just gave back, two that the next captures and fetches will take."""

SLACK = 1.125
"""A buffer may serve values smaller than itself by this factor: fragments are balanced, hence of nearly one size."""


def tensor_of(values: Values) -> torch.Tensor:
    """The same memory as a CPU float32 tensor."""
    return torch.from_numpy(values)


class HostBuffers:
    """A pool of float32 buffers. Thread-safe.

    A buffer of its own is lent as a view, and is known again by it; others may be given too and are kept as they are.
    """

    def __init__(self) -> None:
        self._pin = torch.cuda.is_available()
        self._own: weakref.WeakValueDictionary[int, Values] = weakref.WeakValueDictionary()
        self._spare: list[Values] = []
        self._lock = threading.Lock()

    def take(self, elements: int) -> Values:
        """A buffer of `elements` float32 with undefined content."""
        with self._lock:
            fitting = [i for i, each in enumerate(self._spare) if elements <= each.size <= elements * SLACK]
            if fitting:
                return self._spare.pop(min(fitting, key=lambda i: self._spare[i].size))[:elements]
        storage = self._new(elements)
        with self._lock:
            self._own[id(storage)] = storage
        return storage[:elements]

    def give(self, values: Values) -> None:
        """Hand a buffer back; nobody else may still read or write it."""
        base = values.base
        with self._lock:
            own = isinstance(base, np.ndarray) and self._own.get(id(base)) is base
            if len(self._spare) >= SPARE_BUFFERS_MAX:
                del self._spare[0]  # It fits nobody that asks now.
            self._spare.append(base if own else values)  # type: ignore[arg-type]

    def _new(self, elements: int) -> Values:
        if self._pin:
            return torch.empty(elements, dtype=torch.float32, pin_memory=True).numpy()
        # numpy asks for huge pages and torch does not: the first touch of 256 MiB took 25 to 60 ms against 130.
        return np.empty(elements, np.float32)
