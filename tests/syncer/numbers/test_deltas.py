"""Deltas that stay as they were pushed."""

from __future__ import annotations

import numpy as np
import pytest

from swift_diloco.core.formats.chunks import Encoding
from syncer.numbers.buffers import ValueBuffers
from tests.syncer.numbers.encoded import LOSSY, SIZE, encoded, floats


@pytest.mark.parametrize("encoding", LOSSY)
def test_flat_is_what_was_pushed(encoding: Encoding) -> None:
    delta, decoded = encoded(floats(1), encoding)
    assert delta.elements == SIZE and np.isfinite(decoded).all()
    assert (delta.flat(ValueBuffers()) == decoded).all()
    assert delta.nbytes < 0.51 * 4 * SIZE
