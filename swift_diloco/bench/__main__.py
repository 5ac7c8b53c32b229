"""`python -m swift_diloco.bench …` is `swift-diloco bench …`."""

import sys

from swift_diloco.bench.cli import main
from swift_diloco.core.errors import DilocoError, exit_with

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except DilocoError as error:
        exit_with(error, "swift-diloco bench")
