"""Stands in for `megatron sft` in tests of the supervision: same flags, same files, no training.

With `--diloco_syncer embedded` it starts a detached process that writes the address file and lives until the islands
have written their exports (`FAKE_SYNCER=stay`: for ever). `FAKE_FAIL=JOB` makes that job fail, `FAKE_HANG=JOB` sleep.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from safetensors.numpy import save_file

from swift_diloco.core.files import run_folder as lock
from tests.tools.quickstart import samples

POLL_S = 0.02
LIVES_S = 120
"""No process of a test lives longer, whatever happens."""


def syncer(run_dir: Path, root: Path, islands: int) -> None:
    """The detached process."""
    with lock.RunFolder(run_dir) as folder:
        samples.write_tape(run_dir / lock.TAPE_FILE)
        folder.publish_address("tcp://127.0.0.1:1", "instance")
        _live(root, islands)


def _live(root: Path, islands: int) -> None:
    deadline = time.monotonic() + LIVES_S
    while time.monotonic() < deadline:
        done = len(list(root.glob("island-*/checkpoint-*/config.json"))) == islands
        if done and os.environ.get("FAKE_SYNCER") != "stay":
            return
        time.sleep(POLL_S)


def trainer(flags: dict[str, str]) -> int:
    """One job."""
    import numpy

    output = Path(flags["output_dir"])
    job = output.name
    if flags.get("diloco_syncer") == "embedded":
        words = [flags["diloco_run_dir"], str(output.parent), "2"]
        subprocess.Popen([sys.executable, "-m", __spec__.name, "syncer", *words], start_new_session=True)
    elif "plugin" in flags:
        assert flags["diloco_syncer"] == "tcp://127.0.0.1:1", flags
    if os.environ.get("FAKE_FAIL") == job:
        print(f"RuntimeError: {job} cannot go on")
        return 3
    if os.environ.get("FAKE_HANG") == job:
        (output.parent / f"{job}.hangs").touch()
        time.sleep(LIVES_S)
    samples.write_lines(output / "logging.jsonl", samples.log_rows(int(flags["train_iters"])))
    checkpoint = output / f"checkpoint-{flags['train_iters']}"
    checkpoint.mkdir()
    own = 1.0 if job == os.environ.get("FAKE_FORK") else 0.0
    save_file({"weight": numpy.full(3, own, dtype=numpy.float32)}, checkpoint / "model.safetensors")
    (checkpoint / "config.json").write_text("{}")
    return 0


def main(argv: list[str]) -> int:
    """`sft FLAGS…` or `syncer RUN_DIR ROOT ISLANDS`."""
    if argv[0] == "syncer":
        syncer(Path(argv[1]), Path(argv[2]), int(argv[3]))
        return 0
    assert argv[0] == "sft"
    return trainer({name.removeprefix("--"): value for name, value in zip(argv[1::2], argv[2::2], strict=True)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
