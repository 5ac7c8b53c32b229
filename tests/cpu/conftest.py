"""The shared fixtures of tests with the real trainer."""

from tests.forkserver.fixtures import fork_server, tiny_project

__all__ = ["fork_server", "tiny_project"]
