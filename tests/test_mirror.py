"""Every module that decides something has a test of its name, in the folder that mirrors its own.

A module decides when one of its functions has a branch: `if`, `match`, `while`, `try`, `and`, `or`, a conditional
expression or a comprehension with a condition. Its test is `test_NAME.py`, or `test_real_NAME.py` where only the real
trainer can run it. `__init__` and `__main__` are no modules of their own.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
BRANCHES = (ast.If, ast.IfExp, ast.Match, ast.While, ast.Try, ast.BoolOp)

EXCEPTIONS = {
    "swift_diloco/trainers/hf/callback.py": "the events of transformers' own trainer: trainers/hf/test_real_islands.py",
    "swift_diloco/trainers/megatron/export.py": "needs megatron-core: tools/export/test_real_export.py",
    "swift_diloco/trainers/megatron/masters.py": "needs megatron-core: trainers/megatron/test_real_pieces.py",
    "swift_diloco/trainers/megatron/sharded_state.py": "needs megatron-core: trainers/megatron/test_real_pieces.py",
}
"""Modules that decide something and have no test of their name, and why."""


def test_every_module_that_decides_has_a_test_of_its_name() -> None:
    assert sorted(_deciding() - _tested()) == sorted(EXCEPTIONS)


def test_every_exception_names_tests_that_are_there() -> None:
    for module, reason in EXCEPTIONS.items():
        assert (ROOT / module).is_file(), module
        named = reason.rpartition(" ")[2]
        assert (ROOT / "tests" / named).is_file(), f"{module}: {named}"


def test_a_branch_makes_a_module_decide_and_a_table_does_not() -> None:
    assert _decides("def f(x):\n    return [y for y in x if y]")
    assert _decides("class A:\n    def f(self, x):\n        return x or 1")
    assert not _decides("TABLE = {1: 2} if True else {}\ndef f(x):\n    return [TABLE[y] for y in x]")


def _deciding() -> set[str]:
    paths = [path for package in ("swift_diloco", "syncer") for path in (ROOT / package).rglob("*.py")]
    return {
        str(path.relative_to(ROOT))
        for path in paths
        if path.stem not in ("__init__", "__main__") and _decides(path.read_text(encoding="utf-8"))
    }


def _decides(source: str) -> bool:
    functions = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef)]
    nodes = [node for function in functions for node in ast.walk(function)]
    return any(isinstance(node, BRANCHES) or (isinstance(node, ast.comprehension) and node.ifs) for node in nodes)


def _tested() -> set[str]:
    """The modules that a test file mirrors: tests/X/test_NAME.py stands for swift_diloco/X/NAME.py and X/NAME.py."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        name = path.stem.removeprefix("test_").removeprefix("real_")
        folder = path.parent.relative_to(ROOT / "tests")
        found |= {str(Path(package) / folder / f"{name}.py") for package in ("", "swift_diloco")}
    return found
