"""A link's patience with what listens at the syncer's address, and its heartbeats."""

from __future__ import annotations

import threading
import time

import pytest

from swift_diloco.core.files.key_files import CurveKeys
from swift_diloco.core.formats.messages import Leave
from swift_diloco.island.links import dealer as link_module
from swift_diloco.island.links.control_link import ControlLink
from swift_diloco.tools.keygen.cli import new_pair
from syncer.links.endpoint import Arrived, Endpoint
from syncer.links.guard import Guard, KeyRing
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.net

WAIT_S = 10.0


def test_a_refused_key_is_said_and_tried_again_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "HANDSHAKE_RETRY_S", 0.3)
    server, known, unknown = new_pair(), new_pair(), new_pair()
    guard = Guard(KeyRing(server, frozenset([known.public])))
    endpoint = Endpoint(guard)
    address = endpoint.bind("tcp://127.0.0.1:0")
    stranger = ControlLink(address, heartbeat_s=0, stall_s=0, keys=CurveKeys(unknown, server.public))
    friend = ControlLink(address, heartbeat_s=0, stall_s=0, keys=CurveKeys(known, server.public))
    begin = time.monotonic()
    try:
        for link in (stranger, friend):
            link.start()
        wait_until(lambda: guard.refused >= 3, "three attempts")
        assert time.monotonic() - begin > 0.5, "it does not wait between its attempts"
        assert "it does not know this island's key" in stranger.trouble
        heard_by_syncer: list[Arrived] = []
        for link in (stranger, friend):
            link.send(Leave("s", "g", "hello"))

        def arrived() -> bool:
            heard_by_syncer.extend(each for each in endpoint.arrivals() if isinstance(each, Arrived))
            return bool(heard_by_syncer)

        wait_until(arrived, "the message")
        assert len(heard_by_syncer) == 1 and friend.trouble == ""
    finally:
        for link in (stranger, friend):
            link.close()
        endpoint.close()
    assert not any(thread.name == "guard" for thread in threading.enumerate())
