"""Fixtures of the tests with the real trainer."""

from tests.forkserver.fixtures import *  # noqa: F403
