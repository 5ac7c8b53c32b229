"""The tree of errors in the docstring is that of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from swift_diloco.core import errors

ROOT = Path(errors.__file__).resolve().parents[2]
HERE = "core.errors"
OUTSIDE = {
    "Refusal": "never leaves the module that raises it",
    "Violation": "what a simulated world found",
    "Diverged": "what a replayed story found",
}

Kind = tuple[str, str, str]
"""Name, parent, and module in `swift_diloco` or `syncer`."""


def drawn() -> set[Kind]:
    """The kinds that the docstring draws."""
    found: set[Kind] = set()
    above: list[str] = ["Exception"]
    for indent, name, words in re.findall(r"^    ( *)(\w+)   +(.*)$", errors.__doc__ or "", re.MULTILINE):
        depth = len(indent) // 2 + 1
        above[depth:] = [name]
        module = words.rpartition(" ")[2]
        found.add((name, above[depth - 1], module if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", module) else HERE))
    return found


def written() -> set[Kind]:
    """The kinds that the code has: every class that ends at an exception."""
    classes: dict[str, tuple[str, str]] = {}
    for package in ("swift_diloco", "syncer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT / "swift_diloco" if package == "swift_diloco" else ROOT).parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and node.bases and isinstance(node.bases[0], ast.Name):
                    classes[node.name] = (node.bases[0].id, module.removesuffix(".py"))
    raised: set[Kind] = set()
    for name, (parent, module) in classes.items():
        top = parent
        while top in classes:
            top = classes[top][0]
        if top.endswith(("Error", "Exception")):
            raised.add((name, parent, module))
    return raised


def test_the_tree_of_the_docstring_is_that_of_the_code() -> None:
    assert drawn() == {kind for kind in written() if kind[0] not in OUTSIDE}


def test_the_type_tells_whose_fault_it_is() -> None:
    faults = {name for name, parent, _ in drawn() if parent == "DilocoError"}
    assert faults == {"UserError", "PeerError", "DiskError", "InternalError", "QuickstartError"}


def test_an_error_is_one_line_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        errors.exit_with(errors.UserError("first line\n  second line"), "program")
    assert caught.value.code == errors.USER_MISTAKE_EXIT_CODE == 2
    assert capsys.readouterr().err == "program: error: first line second line\n"


@pytest.mark.parametrize("kind", [errors.PeerError, errors.DiskError, errors.InternalError])
def test_only_a_users_mistake_ends_with_exit_code_2(kind: type[errors.DilocoError]) -> None:
    assert kind.exit_code == 1
