"""The README's test command: its extras suffice for the tests, and CI runs it word for word."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import swift_diloco
from tests.walls import read_tree

ROOT = Path(swift_diloco.__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

NOT_NEEDED = {
    "atheris": "the coverage-guided fuzzer is run by hand",
    "no_such_module_for_test": "what is asked for is not there",
    "transformer_engine": "our stand-in bears its name",
    "triton": "our stand-in bears its name",
}
"""Modules that tests import and no extra brings."""


def command() -> str:
    """The README's test command: installs, then pytest."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Test it")[2]
    return section.partition("```sh\n")[2].partition("\n```")[0]


def installed_by(words: str) -> list[str]:
    """The requirements that the `pip install` parts of a command name."""
    parts = [shlex.split(part) for part in words.split("&&")]
    return [word for part in parts if part[:2] == ["pip", "install"] for word in part[2:] if word != "-e"]


def requirements_of(wanted: Requirement) -> list[Requirement]:
    """What a requirement asks for in turn: ours from the project file, others' from what is installed."""
    if canonicalize_name(wanted.name) == "swift-diloco":
        extras: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
        texts = [*PROJECT["project"]["dependencies"], *(text for extra in wanted.extras for text in extras[extra])]
    else:
        try:
            texts = importlib.metadata.requires(wanted.name) or []
        except importlib.metadata.PackageNotFoundError:
            return []
    asked = [Requirement(text) for text in texts]
    extras_of = sorted(wanted.extras) or [""]
    return [each for each in asked if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in extras_of)]


def closure(texts: Iterable[str]) -> set[str]:
    """The distributions that come with requirements."""
    seen: set[str] = set()
    ahead = [Requirement(text.replace(".[", "swift-diloco[")) for text in texts]
    while ahead:
        wanted = ahead.pop()
        key = f"{canonicalize_name(wanted.name)}[{','.join(sorted(wanted.extras))}]"
        if key not in seen:
            seen.add(key)
            ahead += requirements_of(wanted)
    return {key.partition("[")[0] for key in seen}


def started(tree: ast.AST) -> set[str]:
    """Modules that a source starts as `python -m MODULE`."""
    lists = [node.elts for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple)]
    lists += [node.args for node in ast.walk(tree) if isinstance(node, ast.Call)]
    texts = [[each.value if isinstance(each, ast.Constant) else None for each in words] for words in lists]
    pairs = [pair for words in texts for pair in itertools.pairwise(words)]
    return {module.partition(".")[0] for flag, module in pairs if flag == "-m" and isinstance(module, str)}


@functools.cache
def needed() -> set[str]:
    """Foreign modules that the tests import or start, and what builds our wheel."""
    table = read_tree(ROOT, "tests")
    imported = {name for module in table.values() for name in module.outside}
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("*.py")]
    builders = {Requirement(text).name for text in PROJECT["build-system"]["requires"]}
    ours = {"swift_diloco", "syncer", "tests", "pip", "x", *sys.stdlib_module_names}
    return imported.union(builders, *map(started, trees)) - ours


def missing(requirements: Iterable[str]) -> set[str]:
    """Modules that the tests need and requirements do not bring."""
    brought, makers = closure(requirements), importlib.metadata.packages_distributions()
    return {name for name in needed() if not {canonicalize_name(each) for each in makers.get(name, [name])} & brought}


def test_the_extras_of_the_test_command_suffice() -> None:
    assert missing(installed_by(command())) == set(NOT_NEEDED)


@pytest.mark.parametrize(("without", "lacks"), [("test", "hatchling"), ("test", "hypothesis"), ("cpu", "swift")])
def test_an_extra_that_is_left_out_is_missed(without: str, lacks: str) -> None:
    extras = {"test": ".[cpu]", "cpu": ".[test]"}
    assert lacks in missing(["torch==2.13.0", extras[without]])


def stub(path: Path, text: str) -> None:
    """A program that does so little."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


SUMMARY = """.s.
SKIPPED [1] tests/a.py:3: no room
PASSED tests/a.py::test_b[PASSED c]
3 passed in 1 s"""
"""What pytest prints of a second try."""


def run_ci(folder: Path, failing: str = "", codes: tuple[int, ...] = (1, 1)) -> tuple[int, list[str], list[str]]:
    """`.ci/run` where all it calls is a stub: its exit code, what it called, and what it printed.

    `codes`: those with which what is failing ends, call by call.
    """
    tree, log, stubs = folder / "tree", folder / "log", folder / "stubs"
    (tree / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tree / ".ci" / "run")
    shutil.copy(ROOT / "README.md", tree / "README.md")
    noted = f'IFS="|"; set -- "${{0##*/}}" "$@"; echo "$*" >>{log}'
    for name in ("pip", "ruff", "mypy", "pytest"):
        stub(stubs / name, noted)
    if failing:
        count = f'codes=({" ".join(map(str, codes))}); calls=$(grep -c "^$1" {log})'
        stub(stubs / failing, f"{noted}; {count}; [[ $* != *-rap* ]] || echo '{SUMMARY}'; exit ${{codes[calls - 1]}}")
    stub(stubs / "python", "echo /site-packages")
    made = f'mkdir -p "$3/bin" "$3/lib/python3.11/site-packages"; cp {stubs}/* "$3/bin"; touch "$3/bin/activate"'
    stub(stubs / "python3.11", made)
    environ = {**os.environ, "PATH": f"{stubs}:/usr/bin:/bin", "CI_VENV": str(folder / "venv")}
    done = subprocess.run([tree / ".ci" / "run"], env=environ, capture_output=True, text=True, check=False)
    return done.returncode, log.read_text(encoding="utf-8").splitlines(), done.stdout.splitlines()


TESTS = "|".join(shlex.split(command().rpartition("&&")[2]))
TOOLS = ["pip|install|--no-build-isolation|-e|.[dev]", "ruff|check|.", "ruff|format|--check|.", "mypy"]


def test_ci_runs_the_test_command_word_for_word_and_tells_how_long(tmp_path: Path) -> None:
    code, called, printed = run_ci(tmp_path)
    *installs, tests = ["|".join(shlex.split(part)) for part in command().split("&&")]
    assert (code, called) == (0, [*installs, *TOOLS, tests])
    install, _, last = command().rpartition(" && ")
    assert [re.fullmatch(r" +\d+ s  (.*)", line)[1] for line in printed] == [  # type: ignore[index]
        "environment", install, "static checks", last,
    ]  # fmt: skip


def test_ci_runs_what_failed_once_more_and_then_fails(tmp_path: Path) -> None:
    code, called, printed = run_ci(tmp_path, failing="pytest", codes=(1, 4))
    assert (code, called[-2:]) == (4, [TESTS, f"{TESTS}|-n|0|-rap|--last-failed|--last-failed-no-failures|none"])
    assert not [line for line in printed if "ONLY" in line]


def test_what_passes_only_on_the_second_try_is_named_at_the_end(tmp_path: Path) -> None:
    code, called, printed = run_ci(tmp_path, failing="pytest", codes=(1, 0))
    assert (code, [line.partition("|")[0] for line in called[-2:]]) == (0, ["pytest", "pytest"])
    assert printed[-2:] == [
        "ONLY ON THE SECOND TRY: SKIPPED [1] tests/a.py:3: no room",
        "ONLY ON THE SECOND TRY: PASSED tests/a.py::test_b[PASSED c]",
    ]


@pytest.mark.parametrize("status", [2, 3, 4, 5, 137])
def test_ci_fails_at_once_where_tests_may_not_have_run(status: int, tmp_path: Path) -> None:
    code, called, _ = run_ci(tmp_path, failing="pytest", codes=(status, 0))
    assert (code, called[-1]) == (status, TESTS)


@pytest.mark.parametrize("failing", ["pip", "ruff", "mypy"])
def test_ci_ends_where_something_fails(failing: str, tmp_path: Path) -> None:
    code, called, _ = run_ci(tmp_path, failing=failing)
    assert (code, called[-1].partition("|")[0]) == (1, failing)
    assert not any(line.startswith("pytest") for line in called)
