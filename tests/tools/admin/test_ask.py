"""Which syncer is meant, who we are there, and its answer."""

from __future__ import annotations

import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from swift_diloco.core.errors import PeerError, UserError
from swift_diloco.core.formats import frames
from swift_diloco.core.formats.messages import Refused, SyncerMessage
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminReply, AdminRequest
from swift_diloco.tools.admin import ask as asking
from swift_diloco.tools.admin.ask import Target, ask, target_of

REQUEST = AdminRequest("nonce", "", AdminCommand.STATUS)
ADDRESS = "tcp://127.0.0.1:5"


def options(**given: object) -> Namespace:
    return Namespace(**{"syncer": "", "run_dir": None, "key": None, "syncer_key": "", **given})


def secret_file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_address_and_a_copy_of_the_token_are_enough(tmp_path: Path) -> None:
    token = secret_file(tmp_path / "token", "secret\n")
    assert target_of(options(syncer=ADDRESS, key=token)) == Target(ADDRESS, "secret")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"syncer": ADDRESS, "run_dir": Path("x")}, "both --syncer and --run-dir are given"),
        ({"syncer": "here:5"}, "--syncer is 'here:5'; expected tcp://HOST:PORT"),
        ({"syncer": ADDRESS}, f"orders to {ADDRESS} need --key"),
        ({"run_dir": Path("/nowhere")}, "no syncer lives in the run folder /nowhere"),
    ],
)
def test_mistake_is_told_with_what_is_expected(given: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        target_of(options(**given))


def test_key_file_without_the_syncers_key_is_told_from_a_token(tmp_path: Path) -> None:
    key = secret_file(tmp_path / "admin.key", "public\nsecret\n")
    with pytest.raises(UserError, match="is a key file, and encryption needs the syncer's public key too"):
        target_of(options(syncer=ADDRESS, key=key))


class Answering:
    """A syncer that takes one request."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._router = context.socket(zmq.ROUTER)
        self.address = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self.taken: list[AdminRequest] = []

    def once(self, answer: Callable[[AdminRequest], SyncerMessage]) -> threading.Thread:
        thread = threading.Thread(target=self._serve, args=(answer,), daemon=True)
        thread.start()
        return thread

    def _serve(self, answer: Callable[[AdminRequest], SyncerMessage]) -> None:
        peer, *parts = self._router.recv_multipart()
        message, _ = frames.decode_from_island(parts)
        assert isinstance(message, AdminRequest)
        self.taken.append(message)
        self._router.send_multipart([peer, *frames.encode(answer(message))])

    def close(self) -> None:
        self._router.close(0)


@pytest.fixture
def syncer() -> Iterator[Answering]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    answering = Answering(context)
    yield answering
    answering.close()
    context.term()


@pytest.mark.net
def test_request_carries_the_token_and_its_answer_is_returned(syncer: Answering) -> None:
    answer = AdminReply("session", "nonce", True, "done")
    thread = syncer.once(lambda request: answer)
    assert ask(Target(syncer.address, "secret"), REQUEST) == answer
    thread.join()
    assert syncer.taken == [AdminRequest("nonce", "secret", AdminCommand.STATUS)]


@pytest.mark.net
@pytest.mark.parametrize(
    ("answer", "found"),
    [(AdminReply("session", "other", True, "done"), "AdminReply"), (Refused("session", "", "no"), "Refused")],
)
def test_answer_to_something_else_is_the_peers_fault(syncer: Answering, answer: SyncerMessage, found: str) -> None:
    thread = syncer.once(lambda request: answer)
    with pytest.raises(PeerError, match=f"answered with {found}; is it a syncer of this version"):
        ask(Target(syncer.address), REQUEST)
    thread.join()


@pytest.mark.net
def test_no_answer_is_told_after_its_time(monkeypatch: pytest.MonkeyPatch, syncer: Answering) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", 0.05)
    with pytest.raises(PeerError, match=rf"no answer from {syncer.address} within 0.05 s; it may demand a key"):
        ask(Target(syncer.address), REQUEST)


def test_what_is_no_address_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="tcp://nonsense is no address"):
        ask(Target("tcp://nonsense"), REQUEST)
