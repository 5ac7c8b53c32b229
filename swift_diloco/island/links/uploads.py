"""A rank's uploads: what it captured, encoded chunk by chunk as the syncer grants windows.

With a lossy delta encoding and error feedback, what encoding lost of one push is added to the next push of the same
fragment. A push counts once the syncer holds it, and stops counting when it is dropped, which may happen later: the
decision is therefore taken when the next push of that fragment begins. Until then the residual of the push before is
kept, so that a chunk may be encoded again at any time and gives the same bytes.

Knows no sockets (it is handed a way to send) and nothing of why something is uploaded.

Invariants: an upload's values do not change between `offer` and `forget`; a chunk is sent inside a granted window only;
initial values travel as float32.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from swift_diloco.core.errors import PeerError
from swift_diloco.core.formats import chunks
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import Window
from swift_diloco.core.numbers import codec
from swift_diloco.core.numbers.codec import ErrorFeedback
from swift_diloco.island.numbers.host_buffers import Values

EARLY_WINDOWS_MAX = 1024
"""Windows kept for uploads this rank has not captured yet (rank 0's offer may be granted before this rank's
boundary)."""

SEND_BUFFERS_MAX = 32
"""Encoded chunks that ZeroMQ may hold; more are allocated for the moment and not kept."""

Bytes = NDArray[np.uint8]
SendChunk = Callable[[str, int, Bytes], "zmq.MessageTracker | None"]
"""Sends chunk number `index` of an upload without copying it; the tracker says when its bytes are free again."""


class SendBuffers:
    """Byte buffers of one size that are used again when ZeroMQ has sent what was in them. One thread."""

    def __init__(self) -> None:
        self._size = 0
        self._idle: list[Bytes] = []
        self._sending: list[tuple[Bytes, zmq.MessageTracker]] = []

    def take(self, size: int) -> Bytes:
        """A buffer of exactly `size` bytes with anything in it."""
        if size > self._size:
            self._size = size
            self._idle.clear()
        if not self._idle:
            free = [buffer for buffer, tracker in self._sending if tracker.done]
            self._sending = [pair for pair in self._sending if not pair[1].done]
            self._idle = [buffer for buffer in free if buffer.size == self._size]
        whole = self._idle.pop() if self._idle else np.empty(self._size, np.uint8)
        return whole[:size]

    def sent(self, part: Bytes, tracker: zmq.MessageTracker | None) -> None:
        """`part` of a taken buffer is ZeroMQ's until the tracker is done; None: it was not sent."""
        whole = part.base if isinstance(part.base, np.ndarray) else part
        if tracker is None:
            self._idle.append(whole)
        elif len(self._sending) < SEND_BUFFERS_MAX:
            self._sending.append((whole, tracker))


@dataclass(frozen=True)
class _Upload:
    """`fragment` is None for initial values, which lose nothing."""

    values: Values
    fragment: int | None


@dataclass
class _Feedback:
    """The residual of one fragment and the fate of its latest push."""

    memory: ErrorFeedback
    push: str = ""
    counted: bool = False
    """The syncer holds the latest push, as far as is known."""
    anchored: bool = True
    """No newer value was installed since the latest push."""

    def begin(self, push: str) -> None:
        """Another push begins: the one before it is decided."""
        self.memory.settle(self.counted)
        self.push, self.counted, self.anchored = push, False, True


class Outgoing:
    """What one rank sends. `offer` and `forget` may be called by any thread, everything else by the link's."""

    def __init__(self, send: SendChunk) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._uploads: dict[str, _Upload] = {}
        self._windows: dict[str, Window] = {}
        self._encoding = Encoding.F32
        self._with_feedback = False
        self._feedback: dict[int, _Feedback] = {}
        self._buffers = SendBuffers()

    # -- owner's side --------------------------------------------------------------------------------------------------

    def offer(self, upload: str, values: Values, fragment: int | None) -> None:
        """Make captured values (stream order, float32) ready; `fragment` is None for initial values."""
        with self._lock:
            self._uploads[upload] = _Upload(values, fragment)

    def forget(self, upload: str) -> Values | None:
        """The upload is over or not wanted; its values are the caller's again."""
        with self._lock:
            found = self._uploads.pop(upload, None)
        return found.values if found is not None else None

    def clear(self) -> None:
        """A generation is over: everything under way is void."""
        with self._lock:
            self._uploads.clear()

    # -- membership (link's thread) ------------------------------------------------------------------------------------

    def begin(self, encoding: Encoding, with_feedback: bool, held: Collection[int]) -> None:
        """A new generation. `held`: fragments from whose present anchor the syncer holds a delta."""
        self._windows.clear()
        if (encoding, with_feedback) != (self._encoding, self._with_feedback):
            self._encoding, self._with_feedback = encoding, with_feedback
            self._feedback.clear()
        for fragment, feedback in self._feedback.items():
            if feedback.anchored:
                feedback.counted = fragment in held

    def installed(self, fragment: int) -> None:
        """A newer value of the fragment is the anchor now."""
        if fragment in self._feedback:
            self._feedback[fragment].anchored = False

    def answered(self, upload: str, counted: bool) -> None:
        """The syncer holds a push (`counted`), or dropped or refused it."""
        for feedback in self._feedback.values():
            if feedback.push == upload:
                feedback.counted = counted

    # -- sending (link's thread) ---------------------------------------------------------------------------------------

    def granted(self, window: Window) -> None:
        """The syncer has room for chunks."""
        if len(self._windows) >= EARLY_WINDOWS_MAX and window.upload not in self._windows:
            raise PeerError(f"the syncer granted windows for {EARLY_WINDOWS_MAX} uploads this rank never captured")
        early = self._windows.get(window.upload, window)
        first, upto = min(early.first, window.first), max(early.upto, window.upto)
        self._windows[window.upload] = msgspec.structs.replace(window, first=first, upto=upto)
        self.send_window(window.upload)

    def drop_window(self, upload: str) -> None:
        """What was granted for an upload is not needed."""
        self._windows.pop(upload, None)

    def send_window(self, upload: str) -> None:
        """Send what was granted, if it is captured."""
        with self._lock:
            found = self._uploads.get(upload)
        if found is None or upload not in self._windows:
            return
        window = self._windows.pop(upload)
        for index in range(window.first, min(window.upto, chunks.chunk_count(found.values.size))):
            self._send_chunk(upload, index, found)

    def _send_chunk(self, upload: str, index: int, found: _Upload) -> None:
        begin = index * chunks.CHUNK_ELEMENTS
        part = found.values[begin : begin + chunks.CHUNK_ELEMENTS]
        if found.fragment is None or self._encoding is Encoding.F32:
            self._send(upload, index, codec.encode(part, Encoding.F32))
            return
        payload = self._buffers.take(chunks.encoded_bytes(part.size, self._encoding))
        feedback = self._begin_feedback(found.fragment, found.values.size, upload)
        if feedback is None:
            codec.encode(part, self._encoding, payload)
        else:
            feedback.memory.encode(index, part, payload)
        self._buffers.sent(payload, self._send(upload, index, payload))

    def _begin_feedback(self, fragment: int, elements: int, push: str) -> _Feedback | None:
        if not self._with_feedback:
            return None
        feedback = self._feedback.get(fragment)
        if feedback is None:
            feedback = self._feedback[fragment] = _Feedback(ErrorFeedback(elements, self._encoding))
        if feedback.push != push:
            feedback.begin(push)
        return feedback
