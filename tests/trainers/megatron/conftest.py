"""Fixtures of the tests with the real trainer."""

from tests.trainer.fixtures import *  # noqa: F403
