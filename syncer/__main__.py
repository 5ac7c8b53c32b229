"""`python -m syncer`: the same as `swift-diloco-syncer`."""

from syncer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
