"""What no line of ours may do, wherever it stands: act within an assert, or write a file in place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
    for package in ("swift_diloco", "syncer")
    for path in sorted((ROOT / package).rglob("*.py"))
}

ACTS = set(
    "add append appendleft clear close discard extend insert next pop popitem popleft remove reverse send setdefault "
    "sort update write".split()
)
"""What changes something: under `python -O` no assert does anything."""

WRITES = set(
    "copy2 copyfile copytree dump fdopen link memmap mkstemp move NamedTemporaryFile np.save os.replace rename "
    "save_file save_pretrained savefig savetxt savez symlink_to tofile torch.save touch truncate write_bytes "
    "write_text".split()
)
"""What writes a file, or gives one its name."""

OPENS_TO_WRITE = re.compile(r"['\"][rbt]*[wxa+][rwxabt+]*['\"]$|O_WRONLY|O_RDWR|O_CREAT")
"""An argument of `open` that asks for more than reading."""

IN_PLACE = {
    "swift_diloco/core/files/whole_files.py": "the one way in which a file is written",
    "swift_diloco/core/files/key_files.py": "a key never takes the place of another, as a renamed file would",
    "swift_diloco/core/files/run_folder.py": "a lock",
    "swift_diloco/tools/quickstart/folder.py": "a lock",
    "syncer/files/store.py": "a lock, and a probe whether the folder can be written to",
    "syncer/files/tape.py": "a tape grows",
    "swift_diloco/trainers/embedded/process.py": "what a process prints",
    "swift_diloco/tools/quickstart/jobs/supervisor.py": "what a process prints",
    "swift_diloco/tools/bench/processes.py": "what a process prints",
    "swift_diloco/tools/quickstart/data/model.py": "transformers writes the folder of a model as it will",
}
"""Modules that write a file in place, and why."""


def acting(source: ast.AST) -> list[str]:
    """Asserts that change something."""
    nodes = [node for node in ast.walk(source) if isinstance(node, ast.Assert)]
    return [ast.unparse(node) for node in nodes if any(map(_acts, ast.walk(node)))]


def _acts(node: ast.AST) -> bool:
    return isinstance(node, ast.NamedExpr | ast.Await) or (isinstance(node, ast.Call) and _called(node) in ACTS)


def _called(call: ast.Call) -> str:
    """The last word of what is called; a module's own `save` and `replace` are told from all others."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("save", "replace"):
        return ast.unparse(call.func)
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def writing_in_place(source: ast.AST) -> list[str]:
    """Calls that write a file otherwise than to the temporary path that `replaced` gives."""
    return [ast.unparse(call) for call in _calls(source) if _writes(call)]


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """All calls but those in a block of `replaced`."""
    if isinstance(node, ast.With) and any("replaced" in ast.unparse(item.context_expr) for item in node.items):
        return
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)


def _writes(call: ast.Call) -> bool:
    name, words = _called(call), [*call.args, *(word.value for word in call.keywords)]
    return name in WRITES or (name == "open" and any(OPENS_TO_WRITE.search(ast.unparse(word)) for word in words))


def test_no_assert_acts() -> None:
    found = {path: acting(source) for path, source in SOURCES.items()}
    assert {path: each for path, each in found.items() if each} == {}


def test_files_are_written_whole_with_listed_exceptions() -> None:
    found = {path: writing_in_place(source) for path, source in SOURCES.items()}
    assert {path: each for path, each in found.items() if each and path not in IN_PLACE} == {}
    assert [path for path in IN_PLACE if not found[path]] == [], "take it out"


@pytest.mark.parametrize(
    "test",
    [
        "self.answers.pop(island).complete", "not seen.add(1)", "(n := f())", "[q.popleft() for _ in q]",
        "next(it) == 1", "f(lambda: x.clear())", "x, log.append(1)",
    ],
)  # fmt: skip
def test_an_assert_that_acts_is_found(test: str) -> None:
    assert acting(ast.parse(f"def f():\n    assert {test}")) == [f"assert {test}"]


def test_an_assert_that_asks_is_none() -> None:
    assert acting(ast.parse("assert x in seen and len(x) == max(y) and self.holds(x), f'{x}'\nx.pop()")) == []


@pytest.mark.parametrize(
    "call",
    [
        "path.write_text('x')", "path.write_bytes(b'')", "open(path, 'w')", "path.open('xb')", "path.open(mode='a+')",
        "open(path, 'r+b')", "os.open(path, os.O_WRONLY | os.O_CREAT)", "np.save(path, x)", "json.dump(x, file)",
        "safetensors.torch.save_file(x, path)", "figure.savefig(path)", "shutil.copy2(a, b)", "os.replace(a, b)",
    ],
)  # fmt: skip
def test_a_write_in_place_is_found(call: str) -> None:
    assert writing_in_place(ast.parse(f"def f():\n    with g():\n        {call}")) == [call]


def test_what_reads_or_writes_beside_is_no_write_in_place() -> None:
    block = "with replaced(path) as temporary:\n    save_file(x, temporary)\n    temporary.write_text('x')"
    reads = "open(path)\npath.open('rb')\nopen('w.txt', encoding='ascii')\nos.open(path, os.O_RDONLY)\njson.dumps(x)"
    others = "uploads.open(effect, 1)\nwrite_whole(path, [b''])\nisland.save(path)\n'x'.replace('x', 'y')"
    assert writing_in_place(ast.parse(f"{block}\n{reads}\n{others}")) == []
