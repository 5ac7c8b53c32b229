"""Uploads of a rank: windows, encodings and error feedback, without sockets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import zmq
from numpy.typing import NDArray

from swift_diloco.core.errors import PeerError
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS, Encoding
from swift_diloco.core.formats.messages import Window
from swift_diloco.core.numbers import codec
from swift_diloco.island.links.uploads import EARLY_WINDOWS_MAX, Outgoing, SendBuffers

Floats = NDArray[np.float32]


@dataclass
class Wire:
    """Takes chunks as ZeroMQ does, and what they decode to."""

    encoding: Encoding = Encoding.F32
    sent: list[tuple[str, int, bytes]] = field(default_factory=list)

    def send(self, upload: str, index: int, payload: NDArray[np.uint8]) -> zmq.MessageTracker | None:
        self.sent.append((upload, index, payload.tobytes()))
        return None

    def floats(self, elements: int) -> Floats:
        """The latest chunk 0."""
        out = np.empty(elements, np.float32)
        codec.decode(self.sent[-1][2], self.encoding, out)
        return out


def window(upload: str, first: int, upto: int) -> Window:
    return Window("s", "g", upload, 0, first, upto)


def outgoing(encoding: Encoding, *, feedback: bool) -> tuple[Outgoing, Wire]:
    wire = Wire(encoding)
    made = Outgoing(wire.send)
    made.begin(encoding, feedback, ())
    return made, wire


def push(out: Outgoing, wire: Wire, name: str, delta: Floats) -> Floats:
    """A whole push of fragment 0; what the syncer gets."""
    out.offer(name, delta, 0)
    out.granted(window(name, 0, 1))
    out.forget(name)
    return wire.floats(delta.size)


def noise(seed: int, elements: int = 1000) -> Floats:
    return np.random.default_rng(seed).standard_normal(elements).astype(np.float32)


def test_initial_values_travel_as_float32_whatever_the_encoding_of_deltas() -> None:
    out, wire = outgoing(Encoding.Q4, feedback=True)
    values = noise(1)
    out.offer("init", values, None)
    out.granted(window("init", 0, 1))
    assert wire.sent == [("init", 0, values.tobytes())]


def test_a_window_is_sent_once_and_no_further_than_the_values_go() -> None:
    out, wire = outgoing(Encoding.BF16, feedback=False)
    out.offer("g.1", noise(2, CHUNK_ELEMENTS + 10), 0)
    out.granted(window("g.1", 1, 9))
    out.send_window("g.1")
    assert [(upload, index, len(data)) for upload, index, data in wire.sent] == [("g.1", 1, 20)]


def test_a_chunk_that_is_asked_for_again_has_the_same_bytes() -> None:
    out, wire = outgoing(Encoding.INT8, feedback=True)
    push(out, wire, "g.1", noise(3))
    out.answered("g.1", True)
    out.offer("g.2", noise(4), 0)
    for _ in range(2):
        out.granted(window("g.2", 0, 1))
    assert wire.sent[-1] == wire.sent[-2]


def test_what_was_lost_of_a_counted_push_is_in_the_next_one() -> None:
    out, wire = outgoing(Encoding.Q4, feedback=True)
    first, second = noise(5), noise(6)
    got = push(out, wire, "g.1", first)
    out.answered("g.1", True)
    out.installed(0)
    expected = np.empty_like(second)
    codec.decode(codec.encode(second + (first - got), Encoding.Q4), Encoding.Q4, expected)
    assert (push(out, wire, "g.2", second) == expected).all()


@pytest.mark.parametrize("fate", ["refused", "dropped after it was held", "generation lost"])
def test_a_push_that_did_not_count_leaves_no_residual(fate: str) -> None:
    out, wire = outgoing(Encoding.Q4, feedback=True)
    push(out, wire, "g.1", noise(7))
    if fate == "dropped after it was held":
        out.answered("g.1", True)
    if fate == "generation lost":
        out.begin(Encoding.Q4, True, ())
    else:
        out.answered("g.1", False)
    delta = noise(8)
    expected = np.empty_like(delta)
    codec.decode(codec.encode(delta, Encoding.Q4), Encoding.Q4, expected)
    assert (push(out, wire, "g.2", delta) == expected).all()


def test_a_redial_counts_the_push_that_the_syncer_holds_and_not_one_settled_by_an_install() -> None:
    out, wire = outgoing(Encoding.Q4, feedback=True)
    push(out, wire, "g.1", noise(9))
    out.begin(Encoding.Q4, True, {0})
    assert out._feedback[0].counted
    push(out, wire, "h.1", noise(10))
    out.answered("h.1", True)
    out.installed(0)
    out.begin(Encoding.Q4, True, ())
    assert out._feedback[0].counted


def test_a_quantised_walk_reaches_its_goal_with_error_feedback_and_strays_without() -> None:
    """Each push is a tenth of what is left, plus noise of its own; the sum of what arrived is where the syncer is."""
    strayed = {}
    for feedback in (True, False):
        out, wire = outgoing(Encoding.Q4, feedback=feedback)
        arrived, wanted = np.zeros(1000, np.float32), np.zeros(1000, np.float32)
        for number in range(60):
            delta = noise(100 + number) * np.float32(0.1)
            wanted += delta
            arrived += push(out, wire, f"g.{number}", delta)
            out.answered(f"g.{number}", True)
            out.installed(0)
        strayed[feedback] = float(np.sqrt(np.mean((arrived - wanted) ** 2)))
    assert strayed[True] < 0.03 and strayed[False] > 4 * strayed[True], strayed


def test_windows_for_nothing_are_bounded() -> None:
    out, _ = outgoing(Encoding.F32, feedback=False)
    with pytest.raises(PeerError, match=f"granted windows for {EARLY_WINDOWS_MAX} uploads this rank never captured"):
        for number in range(EARLY_WINDOWS_MAX + 1):
            out.granted(window(f"u{number}", 0, 1))


def test_buffers_are_used_again_once_sent_and_not_before() -> None:
    class Tracker:
        done = False

    buffers, tracker = SendBuffers(), Tracker()
    first = buffers.take(100)
    buffers.sent(first, tracker)  # type: ignore[arg-type]
    second = buffers.take(100)
    assert not np.shares_memory(first, second)
    buffers.sent(second, None)
    assert np.shares_memory(buffers.take(50), second)
    tracker.done = True
    assert np.shares_memory(buffers.take(100), first)
