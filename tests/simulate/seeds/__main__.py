"""`python -m tests.simulate.seeds --seeds N --first S` is `swift-diloco simulate worlds …`: N worlds with faults; with
`--seeds 1` one, whose story is printed."""

import sys

from swift_diloco.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["simulate", "worlds", *sys.argv[1:]]))
