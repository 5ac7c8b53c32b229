"""walls.py: every spelling of an import is read, and nothing else is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.walls import OUTSIDE, Arrow, Module, Rule, circles, doors, offences, read_tree

HOUSE = {f"house/{name}.py": "" for name in ("__init__", "brain/__init__", "files/__init__", "files/tape")}


def tree(folder: Path, **sources: str) -> dict[str, Module]:
    """A small house whose brain has a module per source."""
    for name, text in {**HOUSE, **{f"house/brain/{name}.py": text for name, text in sources.items()}}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read_tree(folder, "house")


@pytest.mark.parametrize(
    "source",
    [
        "import house.files.tape",
        "import house.files.tape as t",
        "from house.files import tape",
        "from house.files.tape import Line",
        "from house.files.tape import *",
        "from ..files import tape",
        "from ..files.tape import Line as L",
        "def late():\n    from house.files import tape",
        "class Late:\n    async def act(self):\n        import house.files.tape",
        "try:\n    import house.files.tape\nexcept ImportError:\n    pass",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import house.files.tape",
        "import importlib\nimportlib.import_module('house.files.tape')",
        "from importlib import import_module\nimport_module(name='house.files.tape')",
        "import importlib\nimportlib.import_module('..files.tape', __package__)",
        "__import__('house.files.tape')",
        "import pkgutil\npkgutil.resolve_name('house.files.tape:Line')",
        "import runpy\nrunpy.run_module('house.files.tape')",
        "import importlib\nTABLE = {'tape': 'house.files.tape:main'}\nimportlib.import_module(TABLE['tape'])",
    ],
)
def test_every_spelling_of_an_import_is_read(source: str, tmp_path: Path) -> None:
    table = tree(tmp_path, thought=source)
    rule = Rule("house.brain", "house.files")
    assert offences(rule, table.values()) == [Arrow("house.brain.thought", "house.files.tape")]


@pytest.mark.parametrize(
    "source",
    [
        '"""import house.files.tape"""',
        "WHERE = 'house.files.tape'",
        "def evaluate(model):\n    model.eval()",
        "from house.brain import other",
        "import sys",
    ],
)
def test_what_is_no_import_of_it_is_not_read(source: str, tmp_path: Path) -> None:
    table = tree(tmp_path, thought=source, other="")
    assert offences(Rule("house.brain", "house.files"), table.values()) == []
    assert not table["house.brain.thought"].dynamic


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\ndef load(name):\n    importlib.import_module(name)",
        "import importlib\nimportlib.import_module(f'house.{1}')",
        "__import__('house.' + 'files')",
        "exec('import house.files.tape')",
        "import runpy\nrunpy.run_path('tape.py')",
        "from importlib import import_module as load\nload('house.files.tape')",
        "import importlib\nload = importlib.import_module\nload('house.files.tape')",
        "class Loader:\n    def exec_module(self, module):\n        self.inner.exec_module(module)",
    ],
)
def test_an_import_whose_name_stands_nowhere_is_told(source: str, tmp_path: Path) -> None:
    assert tree(tmp_path, thought=source)["house.brain.thought"].dynamic


def test_a_rule_about_the_outside_allows_what_it_names(tmp_path: Path) -> None:
    table = tree(tmp_path, thought="import enum, time, os.path\nfrom collections.abc import Sequence\nimport house")
    rule = Rule("house.brain", OUTSIDE, but="enum collections")
    assert offences(rule, table.values()) == [Arrow("house.brain.thought", name) for name in ("os", "time")]


def test_one_of_many_may_import_itself_and_no_other(tmp_path: Path) -> None:
    table = tree(tmp_path, thought="import house.files.tape, house.brain.other", other="")
    assert offences(Rule("house.*", "house.*"), table.values()) == [Arrow("house.brain.thought", "house.files.tape")]


def test_nobody_imports_a_part_that_is_forbidden_to_the_whole_but_that_part_itself(tmp_path: Path) -> None:
    table = tree(tmp_path, thought="import house.files.tape as t", other="import house.brain.thought as t")
    found = [offences(Rule("house", never), table.values()) for never in ("house.files", "house.brain", "house")]
    assert found == [[Arrow("house.brain.thought", "house.files.tape")], [], []]


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("import house\nhouse.files.tape", "house"),
        ("import house.brain.other\nhouse.files.tape", "house"),
        ("from house import files\nfiles.tape", "house.files"),
        ("import house.files as f\nf.tape", "house.files"),
        ("from . import other\nfrom .. import files as f\nf.tape", "house.files"),
        ("import importlib\nimportlib.import_module('house.files').tape", "house.files"),
    ],
)
def test_an_import_of_a_package_is_told(source: str, package: str, tmp_path: Path) -> None:
    table = tree(tmp_path, thought=source, other="")
    assert table["house.brain.thought"].imports - {"house.brain.other"} == {package}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import typing\ntyping.sys.modules['time']", {"typing.sys", "modules"}),
        ("import dataclasses as d\ndef late():\n    return d.sys", {"d.sys"}),
        ("import re\nre.enum.sys.path", {"re.enum", "re.enum.sys"}),
        ("import re\nre.enum.Flag", {"re.enum"}),
        ("import msgspec\nencode = msgspec.json", {"msgspec.json"}),
        ("from typing import sys\nsys.path", {"typing.sys"}),
        ("from re import enum as e\ne.Flag", {"re.enum"}),
        ("import typing\ngetattr(typing, 'sys')", {"typing"}),
        ("import typing\nt = typing\nt.sys", {"typing"}),
        ("from swift_diloco.core.files import story_files\nstory_files.time.time()", {"story_files.time"}),
        ("from swift_diloco.core.files.story_files import time", {"swift_diloco.core.files.story_files.time"}),
        ("__builtins__['__import__']('time')", {"__builtins__", "__import__"}),
        ("from dataclasses import field\nfield.__globals__['sys']", {"__globals__"}),
        ("from dataclasses import field\ngetattr(field, '__globals__')", {"__globals__"}),
        ("globals()['__builtins__']", {"globals", "__builtins__"}),
        ("object.__subclasses__()", {"__subclasses__"}),
    ],
)
def test_a_door_to_what_is_not_imported_is_found(source: str, found: set[str]) -> None:
    assert doors(ast.parse(source), "house.brain") == found


@pytest.mark.parametrize(
    "source",
    [
        "import msgspec\nmsgspec.json.encode(1)",
        "import re\nPATTERN = re.compile('modules')",
        "from collections import abc\nclass A(abc.Sized): ...",
        "from collections.abc import Iterator as I\ndef f() -> I[int]: ...",
        "from swift_diloco.core import errors\nraise errors.UserError('')",
    ],
)
def test_what_is_imported_is_no_door(source: str) -> None:
    assert doors(ast.parse(source), "house.brain") == set()


def test_whom_a_rule_is_not_for_does_not_offend(tmp_path: Path) -> None:
    table = tree(tmp_path, thought="import house.files.tape")
    assert offences(Rule("house", "house.files", unless="house.brain.thought"), table.values()) == []


@pytest.mark.parametrize("back", ["from house.brain import a", "def late():\n    import house.brain.a",
                                  "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import house.brain.a"])  # fmt: skip
def test_a_circle_is_found_however_it_is_closed(back: str, tmp_path: Path) -> None:
    table = tree(tmp_path, a="import house.brain.b", b="import house.brain.c", c=back, d="import house.brain.a")
    assert circles(table) == [["house.brain.a", "house.brain.b", "house.brain.c"]]


def test_a_tree_without_a_circle_has_none(tmp_path: Path) -> None:
    assert circles(tree(tmp_path, a="import house.brain.b, house.brain.c", b="import house.brain.c", c="")) == []


@pytest.mark.parametrize(
    ("source", "called"),
    [
        ("FILE = open('f')", {"open"}),
        ("class A:\n    lock = threading.Lock()", {"threading.Lock"}),
        ("@register(1)\ndef f(x=now()): later()", {"register", "now"}),
        ("def f():\n    def g():\n        start()", set()),
        ("f = lambda: start()", set()),
        ("if __name__ == '__main__':\n    main()", set()),
        ("if x:\n    start()", {"start"}),
    ],
)
def test_what_an_import_calls_is_told(source: str, called: set[str], tmp_path: Path) -> None:
    assert tree(tmp_path, thought=source)["house.brain.thought"].calls == called
