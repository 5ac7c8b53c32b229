"""What the README names is there."""

from __future__ import annotations

import re
from pathlib import Path

import swift_diloco

ROOT = Path(swift_diloco.__file__).resolve().parents[1]


def test_the_paths_that_the_readme_names_are_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:swift_diloco|syncer|tests|configs)/[\w/.]*\w", text))
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_programs_that_the_readme_names_are_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"python -m ([\w.]+)", text))
    places = {name: ROOT / name.replace(".", "/") for name in named}
    missing = [n for n, at in places.items() if not ((at / "__main__.py").exists() or at.with_suffix(".py").exists())]
    assert named and missing == []
