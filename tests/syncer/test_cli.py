"""The syncer's command: what it refuses, what it writes, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.run_folder import RunFolder, living_address, living_pid
from swift_diloco.core.formats import frames, status
from swift_diloco.core.formats.messages import Hello, Welcome
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.core.numbers.outer_optimizer import OuterSettings
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from syncer.checks import check_bind, is_loopback, outer_settings
from syncer.cli import main

LAYOUT = make_layout([TensorSpec("a", (2, 3), "rda")])


@contextmanager
def syncer(run_dir: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """A syncer process that listens."""
    argv = [sys.executable, "-m", "syncer", "--run-dir", str(run_dir), "--bind", "tcp://127.0.0.1:0", *flags]
    with subprocess.Popen(argv, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline().decode()
            assert "INFO: listening on tcp://127.0.0.1:" in said, said
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_is_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "node7", "*"])
def test_anything_else_can_be_reached_from_outside(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:5", "tcp://node7:5", "tcp://*:5", "tcp://[::]:5"])
def test_address_beyond_loopback_needs_the_users_word(bind: str) -> None:
    with pytest.raises(UserError, match="neither encrypted nor authenticated; give --curve-key and .* --insecure"):
        check_bind(SyncerSettings(bind=bind))
    check_bind(SyncerSettings(bind=bind, insecure=True))
    check_bind(SyncerSettings(bind=bind, curve_key="syncer.key"))


@pytest.mark.parametrize("bind", ["127.0.0.1:5", "ipc:///tmp/x", "tcp://127.0.0.1", "tcp://:5", "tcp://[::1]"])
def test_address_that_is_none_is_refused(bind: str) -> None:
    with pytest.raises(UserError, match="expected tcp://HOST:PORT"):
        check_bind(SyncerSettings(bind=bind))


def test_nesterov_needs_momentum() -> None:
    assert outer_settings(SyncerSettings()) == OuterSettings(1.0, 0.0, False)
    assert outer_settings(SyncerSettings(outer_lr=0.7, outer_momentum=0.9)) == OuterSettings(0.7, 0.9, True)
    with pytest.raises(UserError, match="must be above 0; found 0.0; change --outer-lr"):
        outer_settings(SyncerSettings(outer_lr=0.0))


def test_users_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--min-island", "2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("swift-diloco-syncer: error: unknown argument") and error.count("\n") == 1


def test_run_folder_in_which_a_syncer_lives_is_refused_with_its_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder(tmp_path) as folder:
        assert living_pid(tmp_path) == os.getpid()
        assert living_address(tmp_path) is None
        folder.publish_address("tcp://127.0.0.1:1", "life")
        assert living_address(tmp_path) == "tcp://127.0.0.1:1"
        assert main(["--run-dir", str(tmp_path), "--bind", "tcp://127.0.0.1:0"]) == 2
        assert f"(process {os.getpid()}); stop it or choose another --run-dir" in capsys.readouterr().err
    assert living_pid(tmp_path) is None and living_address(tmp_path) is None


def test_address_of_a_syncer_that_was_killed_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "syncer.lock").write_text("1\n")
    (tmp_path / "address.json").write_text('{"address": "tcp://127.0.0.1:1", "pid": 1}')
    assert living_pid(tmp_path) is None and living_address(tmp_path) is None


def test_port_in_use_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        assert main(["--run-dir", str(tmp_path), "--bind", f"tcp://127.0.0.1:{port}"]) == 2
    error = capsys.readouterr().err
    assert f"tcp://127.0.0.1:{port} is in use by another process" in error and "Traceback" not in error


@pytest.mark.net
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_syncer_says_where_it_listens_welcomes_an_island_and_ends_on_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    with syncer(tmp_path, "--min-islands", "2") as process:
        address = json.loads((tmp_path / "address.json").read_text())
        assert address["pid"] == process.pid and address["address"].startswith("tcp://127.0.0.1:")
        with zmq.Context() as context, context.socket(zmq.DEALER) as island:
            island.connect(address["address"])
            message = Hello(0, "nonce", LAYOUT.fingerprint, "host", 1, "instance", 0, 1, LAYOUT)
            island.send_multipart(frames.encode(message))
            assert island.poll(10_000)
            welcome, _ = frames.decode_from_syncer(island.recv_multipart())
            assert isinstance(welcome, Welcome) and welcome.nonce == "nonce"
            assert welcome.session == address["instance"]
        process.send_signal(number)
        assert process.wait(20) == 0
        assert not (tmp_path / "address.json").exists()
        assert status.decode((tmp_path / "status.json").read_bytes()).pid == process.pid
        assert process.stderr is not None
        assert process.stderr.read().decode().splitlines()[-1].endswith("told to stop before training began")


@pytest.mark.net
def test_syncer_that_was_killed_leaves_a_folder_that_can_be_used_again(tmp_path: Path) -> None:
    with syncer(tmp_path) as process:
        process.kill()
        process.wait()
        assert (tmp_path / "address.json").exists() and living_address(tmp_path) is None
    with syncer(tmp_path) as process:
        assert living_pid(tmp_path) == process.pid
