"""The parser of every command line of ours."""

import argparse
from typing import NoReturn

from swift_diloco.core.errors import UserError


class _TeachingParser(argparse.ArgumentParser):
    """An argument parser whose mistakes are `UserError`, so that they look like all others."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")
