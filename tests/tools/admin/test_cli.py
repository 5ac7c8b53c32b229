"""`swift-diloco admin` and `status`: the request that words make, and how its answer is told."""

from __future__ import annotations

import pytest

from swift_diloco.cli import main
from swift_diloco.core.errors import UserError
from swift_diloco.core.formats.operator_messages import AdminCommand, AdminReply, AdminRequest
from swift_diloco.core.formats.status import decode, encode
from swift_diloco.tools.admin import cli
from swift_diloco.tools.admin.ask import Target
from swift_diloco.tools.admin.table import table
from tests.tools.admin.test_table import FACTS

ADDRESS = "tcp://127.0.0.1:5"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[AdminRequest]:
    """What a syncer that does everything is asked."""
    requests: list[AdminRequest] = []

    def ask(target: Target, request: AdminRequest) -> AdminReply:
        assert target == Target(ADDRESS)
        requests.append(request)
        status = encode(FACTS).decode() if request.command is AdminCommand.STATUS else ""
        return AdminReply("session", request.nonce, True, "it is done", status)

    monkeypatch.setattr(cli, "ask", ask)
    monkeypatch.setattr(cli, "target_of", lambda found: Target(found.syncer))
    return requests


@pytest.mark.parametrize(
    ("words", "asked_for"),
    [
        (["stop"], (AdminCommand.STOP, None, (), "")),
        (["save", "--island", "3", "--reason", "now"], (AdminCommand.SAVE, 3, (), "now")),
        (
            ["set", "min-islands=2", "quorum=1"],
            (AdminCommand.SET, None, (("min_islands", "2"), ("quorum", "1")), ""),
        ),
    ],
)
def test_order_is_one_request_with_all_that_was_said(
    asked: list[AdminRequest], capsys: pytest.CaptureFixture[str], words: list[str], asked_for: tuple[object, ...]
) -> None:
    assert main(["admin", *words, "--syncer", ADDRESS]) == 0
    (request,) = asked
    assert (request.token, request.command, request.island, request.changes, request.reason) == ("", *asked_for)
    assert capsys.readouterr().out == "it is done\n"


def test_status_is_a_table_or_what_the_syncer_said(
    asked: list[AdminRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--syncer", ADDRESS]) == 0
    assert capsys.readouterr().out == table(FACTS) + "\n"
    assert main(["status", "--syncer", ADDRESS, "--json"]) == 0
    assert decode(capsys.readouterr().out) == FACTS
    assert [request.command for request in asked] == [AdminCommand.STATUS] * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stopp"], "unknown order 'stopp', the nearest is stop; expected "),
        (["stop", "x=1"], "stop takes no 'x=1'; only set takes NAME=VALUE"),
        (["set", "quorum="], "'quorum=' is no change; expected NAME=VALUE"),
        (["set", "quorum"], "'quorum' is no change; expected NAME=VALUE"),
        ([], "COMMAND"),
    ],
)
def test_mistake_asks_nobody_and_is_one_line(
    asked: list[AdminRequest], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["admin", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and asked == []


def test_refused_order_is_a_users_mistake() -> None:
    request = AdminRequest("nonce", "", AdminCommand.KICK, 7)
    with pytest.raises(UserError, match="^the syncer refused: no such island$"):
        cli.tell(request, AdminReply("session", "nonce", False, "no such island"), as_json=False)
