"""Acting on a module when it has been imported."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from swift_diloco.cpu.after_import import after_import

NAME = "module_for_test_after_import"


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)


def test_the_action_sees_the_complete_module_once(module_file: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ModuleType] = []
    after_import(NAME, seen.append)
    assert seen == []
    module = importlib.import_module(NAME)
    assert seen == [module] and module.VALUE == 1
    importlib.import_module(NAME)
    assert seen == [module]
    monkeypatch.delitem(sys.modules, NAME)


def test_a_module_that_is_not_there_is_not_found(module_file: None) -> None:
    after_import("no_such_module_for_test", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_for_test")


def test_a_module_that_was_imported_already_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="imported already"):
        after_import("sys", lambda module: None)
