"""The commands that users type: `swift sft` with a YAML file under ms-swift's torchrun, and without the start-up hook.

No syncer runs: that the callback looks for one, at the address it was given, shows that everything before it worked.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from swift_diloco.launch.plugins import installed_plugins
from swift_diloco.tools.quickstart.jobs.commands import free_port
from tests.forkserver.tiny import TinyProject
from tests.trainers.hf.jobs import Job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif("diloco" not in installed_plugins(), reason="this project is not installed (pip install -e .)"),
]

BIN = Path(sys.executable).parent
NOBODY = "tcp://127.0.0.1:9"
REFUSAL = f"swift-diloco: error: no syncer answered at {NOBODY} within"


def run(words: list[str], environ: Mapping[str, str], cwd: Path) -> tuple[int, str]:
    """Run a command to its end: exit code, and stdout and stderr together."""
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "GLOO_SOCKET_IFNAME": "lo"}
    result = subprocess.run(
        words, env={**os.environ, **offline, **environ}, cwd=cwd, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=200,
    )  # fmt: skip
    return result.returncode, result.stdout


def test_a_yaml_file_with_two_ranks_reaches_the_callback(project: TinyProject, tmp_path: Path) -> None:
    words = Job(project, tmp_path / "out").words(syncer=NOBODY)
    config = {flag.removeprefix("--"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    config["diloco_connect_timeout_s"] = "1"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    environ = {"NPROC_PER_NODE": "2", "MASTER_PORT": str(free_port())}
    exit_code, output = run([str(BIN / "swift"), "sft", "run.yaml"], environ, tmp_path)
    assert exit_code != 0
    assert output.count(REFUSAL) == 1, output[-3000:]


def test_the_plugin_works_without_the_hook(project: TinyProject, tmp_path: Path) -> None:
    plugin = run([str(BIN / "swift-diloco"), "plugin-path"], {}, tmp_path)[1].strip()
    words = Job(project, tmp_path / "out", plugin=False).words()
    script = find_spec("swift.cli.sft")
    assert script is not None and script.origin is not None
    environ = {"YETO_DILOCO_HOOK": "off", "YETO_DILOCO_SYNCER": NOBODY, "YETO_DILOCO_CONNECT_TIMEOUT_S": "1"}
    command = [sys.executable, script.origin, *words, "--external_plugins", plugin, "--callbacks", "diloco"]
    exit_code, output = run(command, environ, tmp_path)
    assert exit_code == 2, output[-3000:]
    assert REFUSAL in output
