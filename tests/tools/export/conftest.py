"""Fixtures of the tests with the real trainers."""

from tests.forkserver.fixtures import fork_server, tiny_project
from tests.trainers.hf.conftest import project, swift_server

__all__ = ["fork_server", "project", "swift_server", "tiny_project"]
