"""Fixtures of the tests with the real transformers trainer."""

from collections.abc import Iterator

import pytest

from tests.forkserver.forkserver import ForkServer
from tests.forkserver.tiny import TinyProject


@pytest.fixture(scope="session")
def swift_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """One process with `swift sft` imported, without the CPU platform."""
    with ForkServer(tmp_path_factory.mktemp("swift-server"), family="swift") as server:
        yield server


@pytest.fixture(scope="session")
def project(swift_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> TinyProject:
    """The tiny model and its data; read only."""
    folder = tmp_path_factory.mktemp("tiny")
    swift_server.call("tests.forkserver.tiny:build_from_command_line", [str(folder)]).check()
    return TinyProject(folder)
