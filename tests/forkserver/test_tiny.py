"""The command line of the tiny project."""

from pathlib import Path

from tests.forkserver.tiny import TinyProject


def test_overrides_replace_add_and_remove_flags() -> None:
    words = TinyProject(Path("/x")).arguments(Path("/out"), ["--last"], train_iters=8, seed=7, lr=None)
    flags = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
    assert flags["--train_iters"] == "8" and flags["--seed"] == "7" and "--lr" not in flags
    assert flags["--model"] == "/x/model" and flags["--output_dir"] == "/out"
    assert words[-1] == "--last"
