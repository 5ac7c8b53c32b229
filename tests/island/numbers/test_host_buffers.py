"""The pool of an island's host buffers."""

from __future__ import annotations

import numpy as np

from swift_diloco.island.numbers.host_buffers import SPARE_BUFFERS_MAX, HostBuffers, tensor_of


def address(values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> int:
    return int(values.ctypes.data)


def test_a_buffer_that_was_given_back_is_taken_again() -> None:
    buffers = HostBuffers()
    first = buffers.take(1000)
    second = buffers.take(1000)
    assert not np.shares_memory(first, second)
    where = address(first)
    buffers.give(first)
    assert address(buffers.take(1000)) == where


def test_a_buffer_serves_a_little_less_and_then_its_whole_size_again() -> None:
    buffers = HostBuffers()
    whole = buffers.take(1000)
    where = address(whole)
    buffers.give(whole)
    less = buffers.take(950)
    assert (address(less), less.size) == (where, 950)
    buffers.give(less)
    again = buffers.take(1000)
    assert (address(again), again.size) == (where, 1000)


def test_a_buffer_does_not_serve_much_less_nor_more() -> None:
    buffers = HostBuffers()
    kept = buffers.take(1000)
    buffers.give(kept)
    assert not any(np.shares_memory(buffers.take(size), kept) for size in (500, 1001))


def test_no_more_than_the_limit_are_kept_and_the_oldest_goes_first() -> None:
    buffers = HostBuffers()
    taken = [buffers.take(1000) for _ in range(SPARE_BUFFERS_MAX + 1)]
    for each in taken:
        buffers.give(each)
    again = [buffers.take(1000) for _ in taken]
    reused = [any(np.shares_memory(each, old) for each in again) for old in taken]
    assert reused == [False] + [True] * SPARE_BUFFERS_MAX


def test_part_of_somebody_elses_array_does_not_bring_in_the_rest() -> None:
    buffers = HostBuffers()
    foreign = np.zeros(1000, np.float32)
    buffers.give(foreign[:100])
    assert buffers.take(100).size == 100
    assert not np.shares_memory(buffers.take(1000), foreign)


def test_both_views_are_of_one_memory() -> None:
    values = HostBuffers().take(10)
    tensor_of(values).fill_(3.0)
    assert np.array_equal(values, np.full(10, 3.0, np.float32))
