"""Log lines that can be seen inside somebody else's trainer.

ms-swift leaves the root logger at ERROR and prints through a handler of its own, so that the lines of any other package
vanish. Knows no trainer: it looks only at the handlers that a record of ours would meet.
"""

from __future__ import annotations

import logging
import sys

LOGGER_NAME = "swift_diloco"
FORMAT = "[%(levelname)s:%(name)s] %(message)s"


def prints_info(logger: logging.Logger) -> bool:
    """Whether a handler on the way of an INFO record of `logger` would print it."""
    current: logging.Logger | None = logger
    while current is not None:
        for handler in current.handlers:
            if handler.level <= logging.INFO and not isinstance(handler, logging.NullHandler):
                return True
        current = current.parent if current.propagate else None
    return False


def make_logs_visible(name: str = LOGGER_NAME) -> logging.Logger:
    """The logger of that name, whose INFO lines reach a terminal. Does nothing where they do already. Idempotent."""
    logger = logging.getLogger(name)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)  # else the root's ERROR decides
    if not prints_info(logger):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(FORMAT))
        logger.addHandler(handler)
        logger.propagate = False
    return logger
