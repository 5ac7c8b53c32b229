"""The wheel, installed into an environment of its own, and the editable install."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import swift_diloco

ROOT = Path(swift_diloco.__file__).resolve().parents[1]
HERE = Path(sysconfig.get_paths()["purelib"])
HOOK = "zz_swift_diloco_hook.pth"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def run(*words: str | Path, **options: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, outside the source tree."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    cwd = options.get("cwd", "/")
    return subprocess.run(
        [str(each) for each in words], env=environ, capture_output=True, text=True, cwd=cwd, timeout=150
    )


def pip(*words: str | Path) -> None:
    """Run pip without any download."""
    result = run(sys.executable, "-m", "pip", "--disable-pip-version-check", *words)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "-q", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def environment(folder: Path) -> Path:
    """A new environment that sees the packages of this one, but not its start-up files; its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{HERE}\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a new environment in which the wheel is installed."""
    python = environment(tmp_path_factory.mktemp("installed") / "env")
    pip("--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    return python


def check_commands(python: Path, package: Path) -> None:
    """What must hold after any kind of install."""
    where = run(python, "-c", "import swift_diloco; print(swift_diloco.__file__)").stdout.strip()
    assert Path(where).is_relative_to(package)
    path = run(python.parent / "swift-diloco", "plugin-path").stdout.strip()
    assert Path(path) == Path(where).parent / "launch" / "entry" / "swift_diloco_plugin.py"
    outer = run(python, "-m", "swift.cli._megatron.main", "sft", "--plugin", "nosuch")
    assert outer.returncode == 2
    assert "installed plugins: diloco (swift-diloco 0.1.0)" in outer.stderr
    presets = run(
        python, "-c", "from swift_diloco.core.settings.presets import shipped_names; print(*shipped_names())"
    ).stdout
    assert presets.split() == ["finetune", "pretrain", "quickstart", "reference"]


def test_the_wheel_holds_both_packages_the_presets_and_the_hook(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"swift_diloco", "syncer", HOOK}
    assert {"swift_diloco/configs/reference.yaml", "swift_diloco/launch/entry/swift_diloco_plugin.py"} <= set(names)
    assert [name for name in names if name.startswith("swift_diloco/launch/entry/")] == [
        "swift_diloco/launch/entry/swift_diloco_plugin.py"
    ]
    assert [name for name in names if name.endswith((".pyc", ".pth"))] == [HOOK]


def test_the_base_install_needs_no_trainer(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(archive.read(name).decode())
    needs: list[str] = metadata.get_all("Requires-Dist") or []
    base = {re.split(r"[^\w-]", need)[0].lower() for need in needs if "extra ==" not in need}
    assert base == {"msgspec", "numba", "numpy", "pyyaml", "pyzmq", "safetensors", "xxhash"}
    assert set(metadata.get_all("Provides-Extra") or []) == {"megatron", "gpu", "cpu", "test", "dev"}


def test_the_wheel_works_where_it_is_installed(installed: Path) -> None:
    check_commands(installed, installed.parents[1])


def test_an_editable_install_has_the_hook_too(tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    pip("--python", python, "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-e", ROOT)
    check_commands(python, ROOT)
    assert len(list((tmp_path / "env").glob(f"lib/python*/site-packages/{HOOK}"))) == 1


def test_an_ordinary_process_loads_the_same_modules_with_and_without_the_hook(installed: Path, tmp_path: Path) -> None:
    bare = environment(tmp_path / "bare")
    code = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    with_hook, without = (json.loads(run(python, "-c", code).stdout) for python in (installed, bare))
    assert with_hook == without


def test_uninstalling_takes_the_hook_away(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    pip("--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    pip("--python", python, "uninstall", "-q", "-y", "swift-diloco")
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    assert sorted(path.name for path in site.iterdir()) == ["others.pth"]
