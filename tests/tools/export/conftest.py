"""Fixtures of the tests with the real trainers."""

from tests.hf.conftest import project, swift_server
from tests.trainer.fixtures import fork_server, tiny_project

__all__ = ["fork_server", "project", "swift_server", "tiny_project"]
