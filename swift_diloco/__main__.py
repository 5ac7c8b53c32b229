"""`python -m swift_diloco …` is `swift-diloco …`."""

from swift_diloco.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
