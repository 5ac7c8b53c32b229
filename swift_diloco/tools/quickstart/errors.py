"""What can go wrong in the quickstart and is told without a traceback. Mistakes of the user are `UserError`s."""

from swift_diloco.core.errors import DilocoError

EXIT_FAILED = 1
"""A process failed or a check did not hold."""

EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells count it (128 + SIGINT)."""


class QuickstartError(DilocoError):
    """The quickstart cannot go on; the message says what was expected, what was found and what to do."""
