"""`python -m swift_diloco.tools.bench …` is `swift-diloco bench …`."""

import sys

from swift_diloco.core.errors import DilocoError, exit_with
from swift_diloco.tools.bench.cli import main

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except DilocoError as error:
        exit_with(error, "swift-diloco bench")
