"""The `swift-diloco` command."""


def main() -> int:
    """Run the command."""
    return 0
