"""`python -m tests.simulate.seeds --seeds N --first S` runs N worlds with faults; with `--seeds 1` one, whose story is
printed."""

import sys

from swift_diloco.core.errors import DilocoError, exit_with
from swift_diloco.simulate.worlds.cli import main

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except DilocoError as error:
        exit_with(error, "tests.simulate.seeds")
