"""Session fixtures for tests with the real trainer; a conftest imports them by name from here.

Several conftests may import them: the server and the tiny project are made once per process all the same.
"""

from collections.abc import Iterator

import pytest

from tests.forkserver.forkserver import ForkServer
from tests.forkserver.tiny import TinyProject

__all__ = ["fork_server", "tiny_project"]

_servers: list[ForkServer] = []
_projects: list[TinyProject] = []


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """One process with ms-swift imported, shared by all tests of the session; its first job takes 8 s longer."""
    if not _servers:
        _servers.append(ForkServer(tmp_path_factory.mktemp("forkserver")))
    yield _servers[0]
    _servers[0].close()


@pytest.fixture(scope="session")
def tiny_project(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> TinyProject:
    """The tiny model and its data; read only."""
    if not _projects:
        folder = tmp_path_factory.mktemp("tiny")
        fork_server.call("tests.forkserver.tiny:build_from_command_line", [str(folder)]).check()
        _projects.append(TinyProject(folder))
    return _projects[0]
