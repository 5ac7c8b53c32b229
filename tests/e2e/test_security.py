"""Encrypted connections: who is listed runs as usual, who is not gets nothing, also across a network."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import zmq

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.key_files import CurveKeys, load_pair, load_public
from swift_diloco.core.formats import frames, tape_lines
from swift_diloco.core.formats.messages import Hello
from swift_diloco.tools.keygen.cli import make_pairs, new_pair
from tests.e2e.harness import FAST, SyncerProcess, check_tape, run_islands
from tests.e2e.namespaces import namespaces, why_not
from tests.fakes.island import Job

pytestmark = pytest.mark.net

QUIET_MS = 1500
"""A handshake on loopback takes milliseconds; what has not come by then does not come."""


@dataclass(frozen=True)
class Keys:
    """A folder of keys of a small run."""

    folder: Path

    def of_job(self, island: int) -> dict[str, str]:
        return {
            "curve_key": str(self.folder / f"island-{island}.key"),
            "syncer_key": str(self.folder / "syncer.pub"),
        }

    @property
    def of_syncer(self) -> tuple[str, ...]:
        return ("--curve-key", str(self.folder / "syncer.key"), "--curve-allow", str(self.folder))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    make_pairs(tmp_path / "keys", ("syncer", "admin", "island-0", "island-1"))
    return Keys(tmp_path / "keys")


def listen_and_speak(address: str, keys: CurveKeys | None) -> tuple[list[int], list[list[bytes]]]:
    """Say Hello as a stranger does; the events of the connection and every message that came."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    if keys is not None:
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys.own.secret)
        socket.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.own.public)
        socket.setsockopt_string(zmq.CURVE_SERVERKEY, keys.server)
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    socket.connect(address)
    socket.send_multipart(frames.encode(Hello(1, "n", "f", "host", 1, "i", 0, 1)))
    events, heard = [], []
    if monitor.poll(QUIET_MS):
        events.append(int.from_bytes(monitor.recv_multipart()[0][:2], "little"))
    while socket.poll(300):
        heard.append(socket.recv_multipart())
    socket.disable_monitor()
    monitor.close(0)
    socket.close(0)
    context.term()
    return events, heard


def test_a_key_that_is_not_listed_gets_nothing(tmp_path: Path, keys: Keys) -> None:
    with SyncerProcess(tmp_path / "run", *FAST, *keys.of_syncer) as syncer:
        address = syncer.address
        server = load_public(keys.folder / "syncer.pub")
        stranger = CurveKeys(new_pair(), server)
        assert listen_and_speak(address, stranger) == ([zmq.EVENT_HANDSHAKE_FAILED_AUTH], [])
        assert listen_and_speak(address, None) == ([], [])
        events, heard = listen_and_speak(address, CurveKeys(load_pair(keys.folder / "island-1.key"), server))
        assert events == [zmq.EVENT_HANDSHAKE_SUCCEEDED] and len(heard) == 1, "the test itself cannot be heard"
        assert f"its public key {stranger.own.public} is not in --curve-allow" in syncer.text()


def test_an_island_with_an_unlisted_key_is_told_why(tmp_path: Path, keys: Keys) -> None:
    make_pairs(tmp_path, ("stranger",))
    with SyncerProcess(tmp_path / "run", *FAST, *keys.of_syncer) as syncer:
        stranger = {"curve_key": str(tmp_path / "stranger.key"), "syncer_key": str(keys.folder / "syncer.pub")}
        with pytest.raises(UserError, match=r"handshake down: it does not know this island's key; .* --curve-allow"):
            run_islands([Job(syncer.address, connect_timeout_s=1.5, **stranger)])  # type: ignore[arg-type]
        with pytest.raises(UserError, match="the two sides do not agree on encryption"):
            run_islands([Job(syncer.address, connect_timeout_s=1.5)])


def test_islands_with_listed_keys_run_as_usual(tmp_path: Path, keys: Keys) -> None:
    with SyncerProcess(tmp_path / "run", *FAST, "--align", "carry", *keys.of_syncer) as syncer:
        (island,) = run_islands([Job(syncer.address, ranks=2, steps=12, step_s=0.02, **keys.of_job(0))])  # type: ignore[arg-type]
        assert syncer.wait() == 0, syncer.text()
        assert all((tensor == 1.0 - 0.5**12).all() for tensor in island.tensors.values())
        check_tape(syncer.tape())


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--bind", "tcp://0.0.0.0:0"], "give --curve-key and --curve-allow"),
        (["--curve-allow", "x"], "--curve-allow is given without --curve-key"),
        (["--curve-key", "KEYS/syncer.key"], "--curve-key is given without --curve-allow"),
        (["--curve-key", "KEYS/syncer.pub", "--curve-allow", "KEYS"], "can be read or changed by others"),
        (["--curve-key", "KEYS/none.key", "--curve-allow", "KEYS"], "cannot be read: No such file"),
        (["--curve-key", "KEYS/syncer.key", "--curve-allow", "EMPTY"], "holds no .pub file"),
        (["--curve-key", "KEYS/syncer.key", "--curve-allow", "KEYS/syncer.pub"], "holds no public key of an island"),
    ],
)
def test_a_mistake_with_keys_is_one_line(tmp_path: Path, keys: Keys, flags: list[str], reason: str) -> None:
    (tmp_path / "empty").mkdir()
    words = [flag.replace("KEYS", str(keys.folder)).replace("EMPTY", str(tmp_path / "empty")) for flag in flags]
    run = tmp_path / "run"
    with SyncerProcess(run, *words) as syncer:
        assert syncer.wait() == 2
        lines = syncer.text().splitlines()
        assert len(lines) == 1 and reason in lines[0], lines
    assert {path.name for path in run.iterdir()} == {"syncer.log"}


@pytest.mark.timeout(120)
def test_two_islands_behind_slow_links_of_their_own_end_with_the_same_bits(tmp_path: Path, keys: Keys) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with namespaces(2, "200mbit") as spaces:
        flags = ("--bind", "tcp://0.0.0.0:0", "--min-islands", "2", *keys.of_syncer)
        with SyncerProcess(tmp_path / "run", *FAST, *flags) as syncer:
            port = syncer.address.rpartition(":")[2]
            processes = []
            for number, space in enumerate(spaces):
                job = Job(
                    f"tcp://{space.here}:{port}",
                    island=number,
                    ranks=1 + number,
                    steps=10,
                    step_s=0.05,
                    target=1.0 + number,
                    elements=200_000,
                    **keys.of_job(number),  # type: ignore[arg-type]
                )
                words = [sys.executable, "-m", "tests.fakes.island", msgspec.json.encode(job).decode()]
                processes.append(subprocess.Popen(space.command(words), stdout=subprocess.PIPE, text=True))
            ends = []
            for process in processes:
                shown, _ = process.communicate(timeout=90)
                assert process.returncode == 0, syncer.text()
                ends.append(json.loads(shown.splitlines()[-1]))
            assert syncer.wait() == 0, syncer.text()
            check_tape(syncer.tape(), min_islands=2)
            assert ends[0]["digest"] == ends[1]["digest"]
            assert ends[1]["pushed_bytes"] > 200_000 and ends[1]["fetched_bytes"] > 200_000
            assert {line.island for line in syncer.events(tape_lines.Joined)} == {0, 1}
