"""Session fixtures for tests with the real trainer; a conftest imports them: `from tests.trainer.fixtures import *`."""

from collections.abc import Iterator

import pytest

from tests.trainer.forkserver import ForkServer
from tests.trainer.tiny import TinyProject

__all__ = ["fork_server", "tiny_project"]


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """One process with ms-swift imported, shared by all tests of the session; its first job takes 10 s longer."""
    with ForkServer(tmp_path_factory.mktemp("forkserver")) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_project(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> TinyProject:
    """The tiny model and its data; read only."""
    folder = tmp_path_factory.mktemp("tiny")
    fork_server.call("tests.trainer.tiny:build_from_command_line", [str(folder)]).check()
    return TinyProject(folder)
