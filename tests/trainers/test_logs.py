"""Our log lines reach a terminal under a root logger that hides them, and are not printed twice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from swift_diloco.trainers.logs import make_logs_visible, prints_info

PARENT = "swift_diloco_test_parent"
NAME = f"{PARENT}.logs"


@contextmanager
def quiet_parent() -> Iterator[logging.Logger]:
    """A logger above ours as ms-swift leaves the root: level ERROR, no handler that prints INFO.

    Neither the root nor a fixture: pytest adds handlers to the root, and to such loggers before it calls a test.
    """
    above, ours = logging.getLogger(PARENT), logging.getLogger(NAME)
    above.handlers[:] = [logging.NullHandler()]
    above.propagate = False
    above.setLevel(logging.ERROR)
    try:
        yield above
    finally:
        above.handlers[:] = []
        ours.handlers[:], ours.propagate = [], True
        ours.setLevel(logging.NOTSET)


def test_info_is_printed_once_where_nobody_would(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet_parent():
        logger = make_logs_visible(NAME)
        assert make_logs_visible(NAME) is logger
        logger.info("island 0 joined")
        assert capsys.readouterr().err == f"[INFO:{NAME}] island 0 joined\n"
        assert len(logger.handlers) == 1
        assert not logger.propagate


def test_handler_that_prints_info_is_left_to_do_so() -> None:
    with quiet_parent() as parent:
        parent.handlers[:] = [logging.StreamHandler()]
        logger = make_logs_visible(NAME)
        assert logger.handlers == []
        assert logger.propagate
        assert logger.isEnabledFor(logging.INFO)


def test_handler_for_errors_only_does_not_count() -> None:
    with quiet_parent() as parent:
        errors = logging.StreamHandler()
        errors.setLevel(logging.ERROR)
        parent.handlers[:] = [errors]
        assert not prints_info(logging.getLogger(NAME))


def test_level_that_the_user_chose_is_kept() -> None:
    with quiet_parent():
        logging.getLogger(NAME).setLevel(logging.WARNING)
        assert make_logs_visible(NAME).level == logging.WARNING
