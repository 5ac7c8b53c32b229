"""Buffers come back when nobody holds them, and not before."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
import zmq
from numpy.typing import NDArray

from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS
from syncer.numbers.buffers import PieceBuffers, ValueBuffers


def address(buffer: NDArray[np.float32]) -> int:
    return int(buffer.ctypes.data)


def test_buffer_is_used_again_when_its_holder_lets_go() -> None:
    buffers = ValueBuffers()
    first = buffers.take(1000)
    assert first.shape == (1000,) and first.dtype == np.float32 and first.flags.writeable
    where = address(first)
    first.flags.writeable = False
    del first
    again = buffers.take(1000)
    assert address(again) == where and again.flags.writeable and buffers.idle_bytes == 0


VIEWS: list[Callable[[NDArray[np.float32]], object]] = [
    lambda buffer: buffer[10:20],
    lambda buffer: buffer[5:].view(np.uint8).data,
    lambda buffer: buffer.reshape(10, 100)[3],
]


@pytest.mark.parametrize("view_of", VIEWS)
def test_buffer_is_not_used_again_while_a_view_of_it_lives(view_of: Callable[[NDArray[np.float32]], object]) -> None:
    buffers = ValueBuffers()
    first = buffers.take(1000)
    where = address(first)
    view = view_of(first)
    del first
    gc.collect()
    second = buffers.take(1000)
    assert address(second) != where
    del view
    assert address(buffers.take(1000)) == where


def test_buffer_serves_values_that_are_a_little_smaller_and_no_others() -> None:
    buffers = ValueBuffers()
    where = address(buffers.take(1000))
    kept = buffers.take(900)
    assert address(kept) == where and kept.size == 900
    del kept
    assert address(buffers.take(600)) != where
    assert address(buffers.take(1001)) != where


def test_no_more_than_the_bound_lies_idle() -> None:
    buffers = ValueBuffers(idle_max=2)
    held = [buffers.take(1000) for _ in range(5)]
    held.clear()
    assert buffers.idle_bytes == 2 * 4000
    other = buffers.take(10)
    del other
    assert buffers.idle_bytes == 4000 + 40


def test_piece_buffer_is_free_when_its_message_is_sent() -> None:
    buffers = PieceBuffers(1)
    first = buffers.take()
    assert first is not None and first.size == CHUNK_ELEMENTS
    with zmq.Context() as context, context.socket(zmq.PAIR) as left, context.socket(zmq.PAIR) as right:
        left.bind("inproc://here")
        right.connect("inproc://here")
        tracker = left.send(first.view(np.uint8).data, copy=False, track=True)
        buffers.sending(first, tracker)
        assert buffers.take() is None
        del tracker
        received = right.recv(copy=False)
        assert buffers.take() is None
        del received
        while (again := buffers.take()) is None:
            pass
        assert again is first


def test_piece_buffer_that_was_not_sent_is_free_at_once() -> None:
    buffers = PieceBuffers(1)
    first = buffers.take()
    assert first is not None
    buffers.give(first)
    assert buffers.take() is first
