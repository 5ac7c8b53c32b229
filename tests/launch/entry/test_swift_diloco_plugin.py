"""The file that ms-swift loads, with stand-ins for ms-swift's two callback maps."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from swift_diloco import cli
from swift_diloco.core.errors import InternalError, UserError

FOLDER = Path(cli.__file__).parent / "launch" / "entry"


def load() -> ModuleType:
    """Load the file as `swift.utils.import_external_file` does: by path, under another name."""
    spec = importlib.util.spec_from_file_location("_external_plugin", FOLDER / "swift_diloco_plugin.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **values: Any) -> None:
    """Put a module with these values into the table of loaded modules."""
    module = ModuleType(name)
    vars(module).update(values)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of ms-swift is loaded."""
    for name in [name for name in sys.modules if name == "swift" or name.startswith("swift.")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def megatron_map(bare: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[Any], Any]]:
    """The callback map of a Megatron process."""
    callbacks: dict[str, Callable[[Any], Any]] = {}
    stand_in(monkeypatch, "swift")
    stand_in(monkeypatch, "swift.megatron")
    stand_in(monkeypatch, "swift.megatron.callbacks", megatron_callbacks_map=callbacks)
    return callbacks


def use_callback(monkeypatch: pytest.MonkeyPatch, callback: Callable[[Any], Any]) -> None:
    """Stand in for the Megatron callback."""
    stand_in(monkeypatch, "swift_diloco.trainers.megatron")
    stand_in(monkeypatch, "swift_diloco.trainers.megatron.callback", DilocoCallback=callback)


def test_the_file_lies_alone_in_its_folder() -> None:
    assert sorted(path.name for path in FOLDER.iterdir() if path.name != "__pycache__") == ["swift_diloco_plugin.py"]


def test_plugin_path_prints_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugin-path"]) == 0
    assert Path(capsys.readouterr().out.strip()) == FOLDER / "swift_diloco_plugin.py"


def test_a_megatron_process_gets_the_callback(
    megatron_map: dict[str, Callable[[Any], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    use_callback(monkeypatch, lambda trainer: ("callback of", trainer))
    assert list(megatron_map) == ["diloco"]
    assert megatron_map["diloco"]("trainer") == ("callback of", "trainer")


def test_a_users_mistake_in_the_callback_is_one_line_and_exit_code_2(
    megatron_map: dict[str, Callable[[Any], Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(trainer: Any) -> Any:
        raise UserError("layout not supported")

    load()
    use_callback(monkeypatch, refuse)
    with pytest.raises(SystemExit) as caught:
        megatron_map["diloco"]("trainer")
    assert (caught.value.code, capsys.readouterr().err) == (2, "swift-diloco: error: layout not supported\n")


def test_an_error_of_ours_keeps_its_traceback(
    megatron_map: dict[str, Callable[[Any], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(trainer: Any) -> Any:
        raise InternalError("broken")

    load()
    use_callback(monkeypatch, break_down)
    with pytest.raises(InternalError, match="broken"):
        megatron_map["diloco"]("trainer")


def test_the_transformers_trainer_gets_a_callback_of_its_own(
    bare: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(args: Any, trainer: Any) -> Any:
        raise UserError(f"{args} of {trainer} not supported")

    callbacks: dict[str, Callable[[Any, Any], Any]] = {}
    stand_in(monkeypatch, "swift")
    stand_in(monkeypatch, "swift.arguments")
    stand_in(monkeypatch, "swift.callbacks", callbacks_map=callbacks)
    stand_in(monkeypatch, "swift_diloco.trainers.hf.callback", DilocoCallback=refuse)
    load()
    with pytest.raises(SystemExit) as caught:
        callbacks["diloco"]("--optim", "a trainer")
    assert caught.value.code == 2
    assert capsys.readouterr().err == "swift-diloco: error: --optim of a trainer not supported\n"


def test_a_data_loader_worker_registers_nothing_and_imports_nothing(bare: None) -> None:
    before = set(sys.modules)
    load()
    assert {name for name in set(sys.modules) - before if name.partition(".")[0] in ("swift", "megatron")} == set()
