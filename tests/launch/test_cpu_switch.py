"""The finder that installs the CPU platform when the first package that needs it is imported."""

import sys

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.launch.cpu_switch import PlatformFinder


def test_the_platform_is_installed_once_at_the_first_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    finder = PlatformFinder(lambda: calls.append("installed"))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "mcore_bridge", raising=False)
    assert finder.find_spec("json") is None
    assert finder.find_spec("swift_diloco") is None
    assert calls == []
    assert finder.find_spec("mcore_bridge") is None
    assert calls == ["installed"]
    assert finder not in sys.meta_path


def test_a_platform_that_cannot_be_installed_ends_the_process_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise UserError("this machine\nhas CUDA")

    finder = PlatformFinder(refuse)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        finder.find_spec("swift")
    assert caught.value.code == 2
    assert capsys.readouterr().err == "swift-diloco: error: this machine has CUDA\n"
