"""The parser of every command line of ours. A mistake is a `UserError`, one line with exit code 2 like all others."""

import argparse
from typing import NoReturn

from swift_diloco.core.errors import UserError


class Parser(argparse.ArgumentParser):
    """Takes no shortened flag: a flag that is added later would change what it means."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")
