"""`swift-diloco simulate`: the command line of this package."""

from __future__ import annotations


def main(argv: list[str]) -> int:
    """The planner, or with `worlds` first the worlds with faults."""
    from swift_diloco.simulate import worlds

    if argv[:1] == ["worlds"]:
        return worlds.main(argv[1:])
    raise SystemExit(2)
