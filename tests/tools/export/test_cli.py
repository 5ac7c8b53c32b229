"""`swift-diloco export`: what it refuses before it writes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_diloco.cli import main
from swift_diloco.tools.export.cli import _split
from tests.tools.export.models import save_base


def test_mistakes_in_the_command_line_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_base(tmp_path / "base")
    saved, base, out = (str(tmp_path / name) for name in ("saved", "base", "out"))
    assert main(["export", saved, "--hf", saved, "--out", out]) == 2
    assert "is no folder of a model: it has no config.json" in capsys.readouterr().err
    assert main(["export", saved, "--hf", base, "--out", base]) == 2
    assert "exists already; give a folder that does not" in capsys.readouterr().err
    assert main(["export", saved, "--hf", base, "--out", out]) == 2
    assert "holds no checkpoint of a syncer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "own", "extra"),
    [
        (["a", "--out", "b"], ["a", "--out", "b"], []),
        (["a", "--", "--model_type", "qwen3"], ["a"], ["--model_type", "qwen3"]),
        (["--", "--", "x"], [], ["--", "x"]),
    ],
)
def test_what_follows_two_dashes_goes_to_ms_swift(words: list[str], own: list[str], extra: list[str]) -> None:
    assert _split(words) == (own, extra)
