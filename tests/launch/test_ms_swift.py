"""The real ms-swift trainer on the CPU platform reaches our callback, with the start-up hook and without it.

No syncer runs: that the callback looks for one, at the address it was given, shows that everything before it worked.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from swift_diloco.launch.plugins import installed_plugins
from swift_diloco.tools.quickstart.jobs.commands import free_port
from tests.forkserver.tiny import TinyProject

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(find_spec("mcore_bridge") is None, reason="ms-swift with Megatron is not installed"),
    pytest.mark.skipif("diloco" not in installed_plugins(), reason="this project is not installed (pip install -e .)"),
]

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[2]

# What the hook does for a trainer on the CPU platform, by hand.
WITHOUT_HOOK = """
import runpy, sys
from importlib.util import find_spec
import swift_diloco.cpu
swift_diloco.cpu.install()
sys.argv[1:] = swift_diloco.cpu.cpu_arguments(sys.argv[1:])
runpy.run_path(find_spec("swift.cli._megatron.sft").origin, run_name="__main__")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> TinyProject:
    """A tiny model and its data, made in another process: transformers warns when it is imported here."""
    folder = tmp_path_factory.mktemp("tiny")
    code = "import pathlib, sys; from tests.forkserver.tiny import build; build(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, folder], check=True, capture_output=True, cwd=ROOT)
    return TinyProject(folder)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nobody answers: bound, so that nobody else takes it, and not listening."""
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        yield owner.getsockname()[1]


def run(words: list[str], environ: Mapping[str, str], cwd: Path) -> tuple[int, str]:
    """Run a command to its end: exit code, and stdout and stderr together. Nothing it started outlives it."""
    process = subprocess.Popen(
        words, env={**os.environ, **environ}, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=200)
        return process.returncode, output
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_yaml_file_under_torchrun_reaches_the_callback(
    project: TinyProject, closed_port: int, tmp_path: Path
) -> None:
    words = project.arguments(tmp_path / "out")
    config = {flag.removeprefix("--"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    ours = {"platform": "cpu", "syncer": f"tcp://127.0.0.1:{closed_port}", "connect_timeout_s": 1}
    config |= {"plugin": "diloco"} | {f"diloco_{name}": str(value) for name, value in ours.items()}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    environ = {"NPROC_PER_NODE": "1", "MASTER_PORT": str(free_port())}
    exit_code, output = run([str(BIN / "megatron"), "sft", "run.yaml"], environ, tmp_path)
    assert exit_code != 0
    assert f"swift-diloco: error: no syncer answered at tcp://127.0.0.1:{closed_port} within" in output


def test_the_plugin_works_without_the_hook(project: TinyProject, closed_port: int, tmp_path: Path) -> None:
    plugin = run([str(BIN / "swift-diloco"), "plugin-path"], {}, tmp_path)[1].strip()
    words = project.arguments(tmp_path / "out", ["--external_plugins", plugin, "--callbacks", "diloco"])
    environ = {
        "YETO_DILOCO_HOOK": "off", "YETO_DILOCO_SYNCER": f"tcp://127.0.0.1:{closed_port}",
        "YETO_DILOCO_CONNECT_TIMEOUT_S": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0",
        "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    }  # fmt: skip
    exit_code, output = run([sys.executable, "-c", WITHOUT_HOOK, *words], environ, tmp_path)
    assert exit_code == 2, output[-3000:]
    assert f"swift-diloco: error: no syncer answered at tcp://127.0.0.1:{closed_port} within" in output
