"""Installed plugins, found by name."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from swift_diloco import launch
from swift_diloco.core.errors import UserError
from swift_diloco.launch.plugins import GROUP, find_plugin

OURS = EntryPoint(name="diloco", value="swift_diloco.launch.entry.swift_diloco_plugin", group=GROUP)


def test_a_plugin_is_the_file_of_its_module_which_is_not_imported() -> None:
    file = find_plugin("diloco", {"diloco": OURS})
    assert Path(file) == Path(launch.__file__).parent / "entry" / "swift_diloco_plugin.py"


def test_a_plugin_whose_module_is_gone_is_named() -> None:
    gone = EntryPoint(name="gone", value="swift_diloco.nothing_here", group=GROUP)
    lost = EntryPoint(name="lost", value="no_such_package.module", group=GROUP)
    with pytest.raises(UserError, match="--plugin gone: module swift_diloco.nothing_here of gone is not there"):
        find_plugin("gone", {"gone": gone})
    with pytest.raises(UserError, match="--plugin lost: lost cannot be loaded: No module named 'no_such_package'"):
        find_plugin("lost", {"lost": lost})


def test_a_plugin_that_is_not_installed_is_told_with_those_that_are() -> None:
    with pytest.raises(
        UserError, match=r"--plugin dilco: no such plugin; installed plugins: diloco \(nearest: diloco\)"
    ):
        find_plugin("dilco", {"diloco": OURS})
    with pytest.raises(UserError, match="installed plugins: none$"):
        find_plugin("diloco", {})
