"""Starts the syncer as a process of its own for an island, or finds the one that its run folder has already.

The syncer is a sibling, not a part: a process in a session of its own, so that it outlives a crash of the island (which
then finds it again). Whoever ends on purpose (done, Ctrl-C, an error that was told) calls `stop`; a crash calls
nothing, and the syncer waits for the island to come back, for a bounded time.

Imports nothing of the syncer, and hands it nothing of the trainer: neither its ranks' rendezvous nor its devices.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from swift_diloco.core.errors import UserError
from swift_diloco.core.files.run_folder import LOG_FILE, living_address, living_pid
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.core.settings.syncer_settings import parse_syncer_argv, syncer_flags

log = logging.getLogger("swift_diloco")

POLL_S = 0.05
"""Time between two looks at a file that another process is about to write."""

PROGRESS_S = 5.0
"""Time between two lines that say what is waited for."""

STOP_S = 15.0
"""How long a syncer that is told to stop may take before it is told again, which ends it at once."""

CHECKPOINT_FOLDER = "checkpoint"
"""Folder of the syncer's checkpoint in its run folder."""

MANIFESTS = "manifest*.json"
"""What a folder with a checkpoint has."""

LOG_TAIL_BYTES = 2000
"""What is read of the syncer's log to tell why it ended."""

RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "NNODES",
    "NPROC_PER_NODE",
    "OMP_NUM_THREADS",
)
"""What torchrun tells a rank; in the syncer it would be false."""

FOREIGN_PREFIXES = ("TORCHELASTIC_", "TORCH_NCCL_", "NCCL_", "PET_", "YETO_DILOCO_")
"""Variables of the trainer and of the island's own settings, by prefix."""


class EmbeddedSyncer:
    """The syncer of one run folder, whoever started it. The constructor starts nothing."""

    def __init__(self, run_dir: Path, settings: IslandSettings) -> None:
        self._run_dir = run_dir.absolute()
        self._settings = settings
        self._started: subprocess.Popen[bytes] | None = None
        """The one that this process started last, so that it does not stay a zombie when it has ended."""

    def lives(self) -> bool:
        """Whether a syncer lives in the run folder."""
        return living_pid(self._run_dir) is not None

    def start_or_find(self, again_at: str = "") -> str:
        """The address of the run folder's syncer, which is started if none lives there. Raises `UserError`.

        `again_at`: the address of the one that lived there before; a new one must be found at the same port.
        """
        run_dir = self._run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        pid = living_pid(run_dir)
        if pid is not None:
            address = self._wait_for_address(self.lives)
            log.info("found the syncer of %s at %s, process %d", run_dir, address, pid)
            return address
        process = self._start(again_at)
        log.info("started the syncer, process %d; its log is %s", process.pid, run_dir / LOG_FILE)
        return self._wait_for_address(lambda: process.poll() is None)

    def _start(self, again_at: str) -> subprocess.Popen[bytes]:
        words = syncer_words(self._run_dir, self._settings)
        if self._started is not None:
            self._started.poll()
        with (self._run_dir / LOG_FILE).open("ab") as log_file:
            self._started = subprocess.Popen(
                # `-P` keeps modules that lie in the working folder out of it.
                [sys.executable, "-P", "-m", "syncer", *words, *_same_port(words, again_at)],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env=syncer_environment(os.environ),
                start_new_session=True,
            )
        return self._started

    def stop(self, within_s: float = STOP_S) -> bool:
        """Have the syncer end, if one lives there: asked to stop, then told to end at once. Whether it ended."""
        for _ in range(2):
            pid = living_pid(self._run_dir)
            if not pid or self._ended_when_told(pid, within_s):
                self._reap(within_s)
                return True
        log.error("the syncer, process %s, does not end; stop it by hand", living_pid(self._run_dir))
        return False

    def _ended_when_told(self, pid: int, within_s: float) -> bool:
        log.info("telling the syncer, process %d, to stop", pid)
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            return True
        return _wait(lambda: not self.lives(), within_s, f"the syncer, process {pid}, to end")

    def _reap(self, within_s: float) -> None:
        """A syncer of ours that let go of its folder ends within moments."""
        if self._started is not None:
            with suppress(subprocess.TimeoutExpired):
                self._started.wait(within_s)

    def _wait_for_address(self, lives: Callable[[], bool]) -> str:
        """The address, once the living syncer has written it."""
        run_dir, timeout_s = self._run_dir, self._settings.connect_timeout_s
        found: list[str] = []

        def look() -> bool:
            alive = lives()
            address = living_address(run_dir)
            if address is not None:
                found.append(address)
            return address is not None or not alive

        _wait(look, timeout_s, f"the syncer of {run_dir} to listen")
        if found:
            return found[-1].replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        if not lives():
            raise UserError(f"the syncer did not start: {_last_line(run_dir / LOG_FILE)} (log: {run_dir / LOG_FILE})")
        raise UserError(
            f"the syncer of {run_dir} does not listen after {timeout_s:g} s; see {run_dir / LOG_FILE}, or raise "
            "--diloco_connect_timeout_s"
        )


def syncer_words(run_dir: Path, settings: IslandSettings) -> list[str]:
    """The syncer's command line."""
    preset = ["--preset", settings.preset] if settings.preset else []
    words = [*preset, *shlex.split(settings.syncer_args)]
    return [*words, "--embedded", "--run-dir", str(run_dir), *checkpoint_flags(run_dir, words)]


def checkpoint_flags(run_dir: Path, words: Sequence[str]) -> list[str]:
    """Where the syncer's checkpoint lies, unless the user's words say it; and --resume when there is one.

    A syncer that is started again in a run folder goes on with the run of that folder, whether the syncer crashed, the
    machine did, or the job was stopped. A finished run is served again and does not begin anew: that takes another
    folder, or removing this one's checkpoint.
    """
    given = parse_syncer_argv(words).checkpoint_path
    folder = Path(given) if given else run_dir / CHECKPOINT_FOLDER
    flags = [] if given else ["--checkpoint-path", str(folder)]
    if any(folder.glob(MANIFESTS)) and "resume" not in syncer_flags(words):
        log.info("the syncer goes on from the checkpoint in %s", folder)
        flags.append("--resume")
    return flags


def _same_port(words: Sequence[str], again_at: str) -> list[str]:
    """The flag that keeps the port of an earlier syncer, where the user left the choice of a port to it. The words are
    read as the syncer will read them, so that a mistake in them is told before it starts."""
    host, _, port = parse_syncer_argv(words).bind.rpartition(":")
    if not again_at or port not in ("0", "*"):
        return []
    return ["--bind", f"{host}:{again_at.rpartition(':')[2]}"]


def syncer_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The island's environment without what is only true of a rank; no device and no start-up hook for the syncer."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in RANK_VARIABLES and not name.startswith(FOREIGN_PREFIXES)
    }
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "YETO_DILOCO_HOOK": "off", "PYTHONUNBUFFERED": "1"}


def _wait(done: Callable[[], bool], timeout_s: float, what: str) -> bool:
    """Wait for a condition, telling people about it. Whether it came true in time."""
    begin = time.monotonic()
    told = begin
    while not done():
        now = time.monotonic()
        if now - begin >= timeout_s:
            return False
        if now - told >= PROGRESS_S:
            told = now
            log.info("waiting for %s (%.0f s of %g s)", what, now - begin, timeout_s)
        time.sleep(POLL_S)
    return True


def _last_line(path: Path) -> str:
    """The last line of a log, which tells why its process ended."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
