"""The server on a real socket: events it reports, effects it performs, and what it makes of bad messages."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from swift_diloco.core.files.json_lines import read_status
from swift_diloco.core.files.tape_file import read_tape
from swift_diloco.core.formats import frames, tape_lines
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import (
    Fetch,
    Fetched,
    Heartbeat,
    HeartbeatReply,
    Refused,
    Stopping,
    Superseded,
    Unknown,
    ValueName,
)
from swift_diloco.core.numbers.digest import fragment_digest
from swift_diloco.core.numbers.outer_optimizer import OuterSettings
from syncer import events as ev
from syncer.links import endpoint
from syncer.server import ServerRules
from tests.syncer.served import (
    BIG,
    LAYOUT,
    PLAN,
    SESSION,
    SMALL,
    Client,
    World,
    column_cut,
    random_values,
    reference_stream,
    serving,
    whole,
)

pytestmark = pytest.mark.net

SPEAK_AND_STAY = """
import sys, time, zmq
from swift_diloco.core.formats import frames
from swift_diloco.core.formats.messages import Hello
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(sys.argv[1])
socket.send_multipart(frames.encode(Hello(7, "from-a-process", "f", "host", 1, "i", 0, 1)))
print("said", flush=True)
time.sleep(60)
"""


def test_control_messages_reach_the_coordinator_and_its_sends_reach_the_peer(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        client = world.client()
        peer = world.peer_of(client)
        client.send(Heartbeat(SESSION, "g", 5))
        event = world.script.wait(lambda e: isinstance(e, ev.Received) and isinstance(e.message, Heartbeat))
        assert event == ev.Received(peer, Heartbeat(SESSION, "g", 5))
        world.perform(ev.Send(peer, HeartbeatReply(SESSION, "g", 1, "nobody")))
        assert client.receive() == (HeartbeatReply(SESSION, "g", 1, "nobody"), None)


def test_killed_process_is_reported_gone_within_a_second(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        with subprocess.Popen([sys.executable, "-c", SPEAK_AND_STAY, world.address], stdout=subprocess.PIPE) as process:
            heard = world.script.wait(
                lambda e: isinstance(e, ev.Received) and getattr(e.message, "nonce", "") == "from-a-process"
            )
            assert isinstance(heard, ev.Received)
            assert ev.PeerGone(heard.peer) not in world.script.events
            process.kill()
            world.script.wait(lambda e: e == ev.PeerGone(heard.peer), within_s=1.0)
        assert world.script.events.count(ev.PeerGone(heard.peer)) == 1


def test_send_to_a_peer_that_is_gone_is_reported_and_nothing_else_suffers(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        stranger = "00ffffffff"
        client = world.client()
        world.perform(
            ev.Send(stranger, Stopping(SESSION, "g", "x")),
            ev.Send(world.peer_of(client), Stopping(SESSION, "g", "still here")),
        )
        assert client.expect(Stopping).reason == "still here"
        assert world.script.wait_for(ev.PeerGone) == ev.PeerGone(stranger)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((b"GET / HTTP/1.1", b"x"), "magic"),
        ((frames.MAGIC + b"\0\x63", b"x"), "wire version 99"),
        ((frames.PREAMBLE, b"\xc1"), "not a message from an island"),
        ((frames.PREAMBLE,), "a message of 1 frames"),
        ((frames.PREAMBLE, b"x", b"x", b"x", b"x", b"x", b"x"), "frames; expected"),
        (tuple(bytes(p) for p in frames.encode(Stopping(SESSION, "g", "wrong way"))), "not a message from an island"),
        ((frames.PREAMBLE, b"x", bytes(frames.PAYLOAD_BYTES_MAX + 1)), "payload"),
    ],
)
def test_bad_message_is_told_to_its_sender_and_nobody_else_notices(
    tmp_path: Path, parts: tuple[bytes, ...], reason: str
) -> None:
    with serving(tmp_path) as world:
        good, bad = world.client(), world.client()
        peer = world.peer_of(good)
        bad.send_raw(*parts)
        refused = bad.expect(Refused)
        assert refused.session == SESSION and reason in refused.reason
        world.perform(ev.Send(peer, Stopping(SESSION, "g", "fine")))
        assert good.expect(Stopping).reason == "fine" and good.silent()
        assert [type(e) for e in world.script.events] == [ev.Received, ev.StopRequested]


def test_bulk_of_an_unknown_session_generation_or_link_is_answered_unknown(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g1", [whole(LAYOUT)])
        name = ValueName(0, 0, "d")
        sent: list[tuple[Client, Fetch | Fetched]] = [
            (island.bulk[0], Fetch("another life", "g1", 0, name, 0, 1)),
            (world.client(), Fetch(SESSION, "g1", 0, name, 0, 1)),
            (world.client(), Fetched(SESSION, "g2", 0, name)),
        ]
        for client, message in sent:
            client.send(message)
            answer = client.expect(Unknown)
            assert (answer.session, answer.generation) == (SESSION, message.generation)
            assert "join again" in answer.reason


def test_pushed_deltas_of_two_ranks_are_merged_published_and_fetched_at_their_places(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        cut = world.join("g0", [column_cut(LAYOUT, 0), column_cut(LAYOUT, 1)], island=0)
        initial = random_values(1)
        names = world.publish_initial(cut, initial)
        assert names == tuple(ValueName(f, 0, fragment_digest(v)) for f, v in enumerate(initial))
        delta = random_values(2)[BIG]
        world.perform(ev.OpenUpload("push-1", "g0", BIG, Encoding.F32))
        cut.upload("push-1", BIG, delta)
        world.perform(ev.Merge(1, 1, BIG, (ev.MergeInput(0, "push-1", 2.0),)))
        finished = world.script.wait_for(ev.MergeFinished)
        expected = initial[BIG] + delta
        assert finished.finite and finished.digest == fragment_digest(expected)
        name = ValueName(BIG, 1, finished.digest)
        world.perform(ev.Commit(1, name, ("push-1",)))
        world.expect_published(name)
        for rank in (0, 1):
            cut.bulk[rank].send(Fetch(SESSION, "g0", rank, name, 0, 8))
            received = cut.receive_stream(rank, name)
            np.testing.assert_array_equal(received, reference_stream(cut.pieces(rank), BIG, expected))


def test_uploads_of_several_islands_weigh_in_the_merge(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        islands = [world.join(f"g{i}", [whole(LAYOUT)], island=i) for i in range(2)]
        initial = random_values(1)
        world.publish_initial(islands[0], initial)
        deltas = [np.full_like(initial[SMALL], value) for value in (-2.0, -8.0)]
        for i, island in enumerate(islands):
            world.perform(ev.OpenUpload(f"push-{i}", f"g{i}", SMALL, Encoding.F32))
            island.upload(f"push-{i}", SMALL, deltas[i])
        world.perform(ev.Merge(1, 1, SMALL, tuple(ev.MergeInput(i, f"push-{i}", w) for i, w in enumerate((3.0, 1.0)))))
        finished = world.script.wait_for(ev.MergeFinished)
        assert finished.finite
        name = ValueName(SMALL, 1, finished.digest)
        world.perform(ev.Commit(1, name, ("push-0", "push-1")))
        world.expect_published(name)
        present = world.state.present(SMALL)
        assert present is not None
        np.testing.assert_allclose(present.values, initial[SMALL] - 3.5, rtol=1e-6)


def test_delta_that_is_not_finite_is_void_and_its_island_named(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g0", [whole(LAYOUT)], island=4)
        initial = random_values(1)
        names = world.publish_initial(island, initial)
        delta = np.zeros_like(initial[SMALL])
        delta[7] = np.inf
        world.perform(ev.OpenUpload("push", "g0", SMALL, Encoding.F32))
        island.upload("push", SMALL, delta)
        world.perform(ev.Merge(1, 1, SMALL, (ev.MergeInput(4, "push", 1.0),)))
        finished = world.script.wait_for(ev.MergeFinished)
        assert (finished.finite, finished.offenders) == (False, (4,))
        world.perform(ev.DiscardMerge(1, ("push",)))
        present = world.state.present(SMALL)
        assert present is not None and present.name == names[SMALL]
        np.testing.assert_array_equal(present.values, initial[SMALL])


def test_forgotten_generation_is_not_told_of_commits_and_its_links_are_unknown(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g0", [whole(LAYOUT)])
        names = world.publish_initial(island, random_values(1))
        world.perform(ev.ForgetGeneration("g0", "lease"))
        island.bulk[0].send(Fetch(SESSION, "g0", 0, names[0], 0, 1))
        island.bulk[0].expect(Unknown)
        assert island.control.silent() and island.bulk[0].silent()


def test_value_that_was_never_published_is_superseded_by_the_present_one(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g0", [whole(LAYOUT)])
        names = world.publish_initial(island, random_values(1))
        ghost = ValueName(SMALL, 9, "not there")
        island.bulk[0].send(Fetch(SESSION, "g0", 0, ghost, 0, 1))
        assert island.bulk[0].expect(Superseded) == Superseded(SESSION, "g0", ghost, names[SMALL])


def test_status_and_tape_are_written(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        world.perform(ev.WriteTape(tape_lines.Stateless(island=1)), ev.Log("info", "hello"))
        client = world.client()
        world.peer_of(client)
    (_, opened), (_, line) = read_tape(tmp_path / "tape.jsonl")
    assert isinstance(opened, tape_lines.Opened)
    assert isinstance(line, tape_lines.Stateless) and line.island == 1 and line.time > 1.7e9
    status = read_status(tmp_path / "status.json")
    assert status is not None and status.time > 1.7e9
    assert msgspec.structs.asdict(status) == msgspec.structs.asdict(world.script.status()) | {
        "time": status.time,
        "bytes_pushed": 0,
        "bytes_fetched": 0,
        "bad_messages": 0,
        "stale_messages": 0,
        "address": world.address,
        "pid": os.getpid(),
    }


def test_coordinator_is_woken_when_it_asked_and_not_before(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        world.perform()
        assert ev.TimePassed() not in world.script.events
        due = time.monotonic() + 0.1
        world.script.wake_at(due)
        world.perform()
        world.script.wait_for(ev.TimePassed)
        assert time.monotonic() >= due
        world.script.wake_at(None)


def test_an_effect_that_the_server_does_not_know_ends_it_and_is_named(tmp_path: Path) -> None:
    world = World(tmp_path, OuterSettings(1.0))
    world.start()
    world.perform("no effect at all")  # type: ignore[arg-type]
    world.wait_ended()
    assert isinstance(world.error, AssertionError) and "no effect at all" in str(world.error)
    world.error = None
    world.stop()


def test_exit_effect_ends_the_server_with_its_code(tmp_path: Path) -> None:
    world = World(tmp_path, OuterSettings(1.0))
    world.start()
    world.perform(ev.Exit(3, "because"))
    world.stop()
    assert world.outcome is not None and (world.outcome.code, world.outcome.reason) == (3, "because")


def test_failure_of_a_job_ends_the_server_with_its_traceback(tmp_path: Path) -> None:
    world = World(tmp_path, OuterSettings(1.0))
    world.start()
    world.perform(ev.AdoptLayout(LAYOUT, PLAN))
    world.perform(ev.AdoptInit(()))
    world.wait_ended()
    with pytest.raises(AssertionError, match="one initial value per fragment"):
        world.stop()


def test_two_pushes_of_one_island_are_merged_in_the_order_given(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g0", [whole(LAYOUT)])
        initial = random_values(1)
        world.publish_initial(island, initial)
        deltas = [np.full_like(initial[SMALL], value) for value in (1.0, 3.0)]
        for i, delta in enumerate(deltas):
            world.perform(ev.OpenUpload(f"push-{i}", "g0", SMALL, Encoding.F32))
            island.upload(f"push-{i}", SMALL, delta)
        world.perform(ev.Merge(1, 1, SMALL, (ev.MergeInput(0, "push-0", 1.0), ev.MergeInput(0, "push-1", 1.0))))
        finished = world.script.wait_for(ev.MergeFinished)
        name = ValueName(SMALL, 1, finished.digest)
        world.perform(ev.Commit(1, name, ("push-0", "push-1")))
        world.expect_published(name)
        present = world.state.present(SMALL)
        assert present is not None
        np.testing.assert_allclose(present.values, initial[SMALL] + 2.0, rtol=1e-5)


def test_result_of_a_discarded_merge_is_not_reported(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g0", [whole(LAYOUT)])
        initial = random_values(1)
        world.publish_initial(island, initial)
        world.perform(ev.OpenUpload("push", "g0", SMALL, Encoding.F32))
        island.upload("push", SMALL, np.ones_like(initial[SMALL]))
        merging = (ev.MergeInput(0, "push", 1.0),)
        world.perform(ev.Merge(1, 1, SMALL, merging), ev.DiscardMerge(1, ()), ev.Merge(1, 2, SMALL, merging))
        world.script.wait(lambda e: isinstance(e, ev.MergeFinished) and e.attempt == 2)
        assert [e.attempt for e in world.script.events if isinstance(e, ev.MergeFinished)] == [2]


def test_peer_that_does_not_read_is_reported_gone_and_the_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "QUEUE_MESSAGES_MAX", 4)
    with serving(tmp_path) as world:
        reader, sleeper = world.client(), world.client()
        sleeper.socket.setsockopt(zmq.RCVHWM, 1)
        peer = world.peer_of(sleeper)
        world.perform(*[ev.Send(peer, Stopping(SESSION, "g", "x" * 1_000_000)) for _ in range(100)])
        assert world.script.wait_for(ev.PeerGone) == ev.PeerGone(peer)
        world.perform(ev.Send(world.peer_of(reader), Stopping(SESSION, "g", "still here")))
        assert reader.expect(Stopping).reason == "still here"


def test_syncer_without_any_connection_asks_to_stop_after_its_time(tmp_path: Path) -> None:
    world = World(tmp_path, OuterSettings(1.0), ServerRules(SESSION, orphan_timeout_s=0.05))
    world.script.push([ev.Exit(0, "nobody is here")])
    world.start()
    world.wait_ended()
    assert world.outcome is not None and world.outcome.reason == "nobody is here"
    world.stop()


def test_connected_peer_keeps_the_syncer_from_stopping(tmp_path: Path) -> None:
    timeout_s = 0.01
    with serving(tmp_path, rules=ServerRules(SESSION, orphan_timeout_s=timeout_s)) as world:
        client = world.client()
        world.peer_of(client)
        before = len(world.script.events)
        end = time.monotonic() + 5 * timeout_s
        while time.monotonic() < end:
            world.peer_of(client)
        assert world.endpoint.connected == 1
        assert [type(event) for event in world.script.events[before:] if not isinstance(event, ev.Received)] == []
