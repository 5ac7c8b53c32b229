"""Raw messages between two processes."""

from __future__ import annotations

import pytest

from swift_diloco.tools.bench.raw import FRAMES_IN_FLIGHT_MAX, RawPeer


@pytest.mark.net
def test_more_frames_than_may_be_in_flight_go_both_ways_and_the_process_ends() -> None:
    with RawPeer() as peer:
        for frames in (1, FRAMES_IN_FLIGHT_MAX + 4):
            peer.push_s(frames)
            peer.fetch_s(frames)
            assert peer._socket.poll(0) == 0, "there are no more than were asked for"
        process = peer._process
        assert process.poll() is None
    assert process.returncode is not None
