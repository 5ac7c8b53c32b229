"""A syncer that is killed or stopped and started again, with fake islands that live on."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from random import Random

import pytest

from swift_diloco.core.files.checkpoint_files import read_newest
from swift_diloco.core.files.run_folder import living_pid
from swift_diloco.core.files.tape_file import read_tape
from swift_diloco.core.formats import tape_lines
from swift_diloco.core.settings.island_settings import IslandSettings
from swift_diloco.tools.audit.auditing import audit
from swift_diloco.tools.audit.report import Fate
from swift_diloco.trainers.embedded.process import EmbeddedSyncer
from tests.e2e.harness import FAST, SyncerProcess, check_tape, in_background
from tests.fakes.island import FakeIsland, Job
from tests.fakes.proxy import UP, Proxy
from tests.fakes.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.net


class Islands:
    """Fake islands that run while the test does something to the syncer."""

    def __init__(self, *jobs: Job) -> None:
        self.islands = [FakeIsland(job) for job in jobs]
        self._thread = in_background(self.islands)

    def finish(self) -> list[FakeIsland]:
        self._thread.join(90.0)
        for island in self.islands:
            if island.errors:
                raise island.errors[0]
        return self.islands


def standing(tape: list[tape_lines.TapeLine]) -> list[tape_lines.Commit]:
    """The commits that are in the state: a restart takes back those after the step it went on from."""
    commits: list[tape_lines.Commit] = []
    for line in tape:
        if isinstance(line, tape_lines.Resumed):
            commits = [each for each in commits if each.t <= line.t]
        elif isinstance(line, tape_lines.Commit):
            commits.append(line)
    return commits


def check_prefix(checkpoint: Path, tape: list[tape_lines.TapeLine]) -> int:
    """A checkpoint is what the tape says of its outer step, bit for bit; returns that step."""
    state = read_newest(checkpoint).state
    commits = [line for line in standing(tape) if line.t <= state.step]
    assert [line.t for line in commits] == list(range(1, state.step + 1))
    for name in state.values:
        of_fragment = [line for line in commits if line.fragment == name.fragment and not line.void]
        if of_fragment:
            assert (of_fragment[-1].version, of_fragment[-1].digest) == (name.version, name.digest)
        else:
            assert name.version == 0
    return state.step


@pytest.mark.parametrize(
    "mode",
    [
        ("--checkpoint-every", "2"),
        ("--checkpoint-every", "1", "--background-checkpoint", "--checkpoint-on-start"),
        ("--durable-publish",),
    ],
    ids=["plain", "background", "durable"],
)
def test_a_killed_syncer_goes_on_from_its_checkpoint_and_the_islands_with_it(
    tmp_path: Path, mode: tuple[str, ...]
) -> None:
    saved = tmp_path / "saved"
    flags = (*FAST, "--min-islands", "2", "--checkpoint-path", str(saved), *mode)
    with SyncerProcess(tmp_path, *flags) as syncer:
        address = syncer.address
        islands = Islands(
            Job(address, island=0, steps=40, target=1.0, step_s=0.05),
            Job(address, island=1, ranks=2, steps=40, target=3.0, step_s=0.05),
        )
        wait_until(lambda: len(syncer.events(tape_lines.Commit)) >= 5, "five commits")
        syncer.process.kill()
        syncer.process.wait()
        step = check_prefix(saved, syncer.tape())
        assert step > 0
        if "--durable-publish" in mode:
            assert step in (syncer.events(tape_lines.Commit)[-1].t, syncer.events(tape_lines.Commit)[-1].t - 1)
    port = ("--bind", address)
    with SyncerProcess(tmp_path, *flags, "--resume", *port) as syncer:
        first, second = islands.finish()
        assert syncer.wait() == 0, syncer.text()
        assert first.digest == second.digest
        (resumed,) = syncer.events(tape_lines.Resumed)
        assert resumed.t == step
        check_tape(standing(syncer.tape()), min_islands=2)
        report = audit(tmp_path / "tape.jsonl")
        assert report.ok, report.violations
        assert report.fates[Fate.OPEN].pushes == 0
        state = read_newest(saved).state
        assert state.final and check_prefix(saved, syncer.tape()) == state.step


def test_a_syncer_killed_again_and_again_merges_nothing_twice_and_ends_with_one_cut(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    flags = (
        *FAST,
        "--min-islands",
        "2",
        "--checkpoint-path",
        str(saved),
        "--checkpoint-every",
        "1",
        "--background-checkpoint",
        "--checkpoint-on-start",
    )
    random = Random(7)
    with SyncerProcess(tmp_path, *flags) as syncer:
        address = syncer.address
        islands = Islands(
            Job(address, island=0, steps=150, target=1.0, step_s=0.03),
            Job(address, island=1, ranks=2, steps=150, target=3.0, step_s=0.03),
        )
        wait_until(lambda: (saved / "manifest.json").exists(), "the first checkpoint")
        syncer.process.kill()
        syncer.process.wait()
    for _ in range(4):
        with SyncerProcess(tmp_path, *flags, "--resume", "--bind", address) as syncer:
            lives = len(syncer.events(tape_lines.Resumed))
            wait_until(lambda: len(syncer.events(tape_lines.Resumed)) > lives or syncer.ended, "the restart")  # noqa: B023
            before = len(syncer.events(tape_lines.Commit))
            wait_until(lambda: len(syncer.events(tape_lines.Commit)) > before + random.randrange(3), "commits")  # noqa: B023
            syncer.process.kill()
            syncer.process.wait()
            check_prefix(saved, syncer.tape())
    with SyncerProcess(tmp_path, *flags, "--resume", "--bind", address) as syncer:
        first, second = islands.finish()
        assert syncer.wait() == 0, syncer.text()
        assert first.digest == second.digest
        report = audit(tmp_path / "tape.jsonl")
        assert report.ok and report.torn <= 5, report.violations
        assert len(syncer.events(tape_lines.Resumed)) == 5
        state = read_newest(saved).state
        assert state.final and check_prefix(saved, syncer.tape()) == state.step


def test_a_stopped_syncer_loses_nothing_and_the_islands_train_on(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    flags = (*FAST, "--checkpoint-path", str(saved), "--checkpoint-every", "1000", "--shutdown-timeout-s", "5")
    with SyncerProcess(tmp_path, *flags) as syncer:
        address = syncer.address
        islands = Islands(Job(address, steps=80, step_s=0.05))
        wait_until(lambda: len(syncer.events(tape_lines.Commit)) >= 3, "three commits")
        syncer.terminate()
        assert syncer.wait() == 0, syncer.text()
        last = syncer.events(tape_lines.Commit)[-1].t
        assert check_prefix(saved, syncer.tape()) == last
    with SyncerProcess(tmp_path, *flags, "--resume", "--bind", address) as syncer:
        islands.finish()
        assert syncer.wait() == 0, syncer.text()
        (resumed,) = syncer.events(tape_lines.Resumed)
        assert resumed.t == last
        report = audit(tmp_path / "tape.jsonl")
        assert report.ok and report.lost_commits == 0 and report.fates[Fate.ROLLED_BACK].pushes == 0


def test_a_second_signal_ends_a_stopping_syncer_at_once(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with SyncerProcess(tmp_path, *FAST, "--checkpoint-path", str(saved)) as syncer:
        idle = threading.Event()

        def dawdle(step: int) -> None:
            if step == 20:
                idle.wait(WAIT_S)

        island = FakeIsland(Job(syncer.address, steps=40, step_s=0.05), dawdle)
        in_background([island])
        wait_until(lambda: island.steps_done == 20, "a step that takes long")
        syncer.terminate()
        wait_until(lambda: "told to stop" in syncer.text(), "the first signal")
        syncer.terminate()
        assert syncer.wait() == 1, syncer.text()
        idle.set()


def test_a_signal_before_training_ends_the_syncer_without_a_checkpoint(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with SyncerProcess(tmp_path, *FAST, "--checkpoint-path", str(saved)) as syncer:
        assert syncer.address
        syncer.terminate()
        assert syncer.wait() == 0, syncer.text()
        assert not list(saved.glob("manifest*"))


def test_a_finished_run_is_served_again_and_launches_nothing(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    flags = (*FAST, "--checkpoint-path", str(saved))
    with SyncerProcess(tmp_path, *flags) as syncer:
        address = syncer.address
        islands = Islands(Job(address, steps=12, step_s=0.02))
        (island,) = islands.finish()
        assert syncer.wait() == 0, syncer.text()
    commits = len(syncer.events(tape_lines.Commit))
    with SyncerProcess(tmp_path, *flags, "--resume", "--bind", address) as syncer:
        (late,) = Islands(Job(address, start=5.0, steps=1, lr=0.0)).finish()
        assert syncer.wait() == 0, syncer.text()
        assert late.digest == island.digest
        assert len(syncer.events(tape_lines.Commit)) == commits


def _put_a_file_in_place_of(folder: Path, away: Path) -> bool:
    """The syncer makes the folder again when it writes just then; so this may take more than one try."""
    if folder.is_dir():
        folder.rename(away / str(time.monotonic_ns()) if away.is_dir() else away)
    try:
        folder.write_text("a file where the folder was")
    except IsADirectoryError:
        return False
    return True


def test_a_disk_that_fails_stops_nothing_and_is_told_loudly(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with SyncerProcess(tmp_path, *FAST, "--checkpoint-path", str(saved), "--checkpoint-every", "1") as syncer:
        islands = Islands(Job(syncer.address, steps=40, step_s=0.05))
        wait_until(lambda: bool(syncer.events(tape_lines.Checkpoint)), "a checkpoint")
        wait_until(lambda: _put_a_file_in_place_of(saved, tmp_path / "away"), "a moment without the folder")
        wait_until(lambda: bool(syncer.events(tape_lines.CheckpointFailed)), "a failure")
        before = len(syncer.events(tape_lines.Commit))
        islands.finish()
        assert syncer.wait() == 0, syncer.text()
        assert len(syncer.events(tape_lines.Commit)) > before
        assert "COULD NOT BE WRITTEN" in syncer.text()


def test_a_resume_without_a_checkpoint_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with SyncerProcess(tmp_path, "--checkpoint-path", str(tmp_path / "saved"), "--resume") as syncer:
        assert syncer.wait() == 2
        assert syncer.text().count("\n") == 1 and "holds no checkpoint of a syncer" in syncer.text()
        assert not (tmp_path / "tape.jsonl").exists() and not (tmp_path / "saved").exists()


def test_what_a_slow_link_delivers_late_is_merged_into_a_later_round(tmp_path: Path) -> None:
    impatient = ("--expected-islands", "2", "--quorum", "1", "--grace-cap-s", "0", "--upload-grace-s", "0")
    saved = ("--max-base-lag", "8", "--checkpoint-path", str(tmp_path / "saved"), "--checkpoint-every", "1")
    with SyncerProcess(tmp_path, *FAST, *impatient, *saved) as syncer, Proxy(syncer.address) as slow:
        slow.limit(80_000.0, UP)
        # Island 1 answers first, but a fragment of 80 kB takes it a second, and a round is over after 0.6 s.
        islands = Islands(
            Job(syncer.address, island=0, steps=20, step_s=0.2, elements=60_000),
            Job(slow.address, island=1, steps=130, step_s=0.03, target=3.0, elements=60_000),
        )
        first, second = islands.finish()
        assert syncer.wait() == 0, syncer.text()
        assert first.digest == second.digest
        report = audit(tmp_path / "tape.jsonl")
        assert report.ok, report.violations
        assert report.late.pushes > 0 and syncer.events(tape_lines.Carried), report.plain()


def test_an_embedded_syncer_that_died_goes_on_without_being_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    settings = IslandSettings(syncer_args=" ".join((*FAST, "--bind", address, "--checkpoint-every", "1")))
    own = EmbeddedSyncer(tmp_path, settings)

    def events(kind: type[tape_lines.SomeLine]) -> list[tape_lines.SomeLine]:
        return [line for _, line in read_tape(tmp_path / "tape.jsonl") if isinstance(line, kind)]

    try:
        assert own.start_or_find() == address
        islands = Islands(Job(address, steps=60, step_s=0.05))
        wait_until(lambda: len(events(tape_lines.Checkpoint)) >= 2, "two checkpoints")
        pid = living_pid(tmp_path)
        assert pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: living_pid(tmp_path) is None, "the end of the syncer")
        assert own.start_or_find() == address
        islands.finish()
        wait_until(lambda: living_pid(tmp_path) is None, "the end of the run")
    finally:
        own.stop()
    assert [line.t > 0 for line in events(tape_lines.Resumed)] == [True]
    assert audit(tmp_path / "tape.jsonl").ok and read_newest(tmp_path / "checkpoint").state.final


def test_a_damaged_checkpoint_is_passed_over_and_told(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    flags = (*FAST, "--checkpoint-path", str(saved), "--checkpoint-every", "1", "--checkpoint-keep", "4")
    with SyncerProcess(tmp_path, *flags) as syncer:
        Islands(Job(syncer.address, steps=12, step_s=0.02)).finish()
        assert syncer.wait() == 0, syncer.text()
    newest = read_newest(saved)
    changed = max(newest.state.values, key=lambda name: name.version)
    (saved / newest.manifest.fragments[changed.fragment].name).write_bytes(b"rotten")
    before = read_newest(saved)
    assert before.skipped and before.state.step < changed.version
    with SyncerProcess(tmp_path, *flags, "--resume") as syncer:
        assert syncer.address
        syncer.terminate()
        assert syncer.wait() == 0, syncer.text()
        assert "a newer checkpoint is not used" in syncer.text()
        assert [line.t for line in syncer.events(tape_lines.Resumed)] == [before.state.step]
        assert check_prefix(saved, syncer.tape()) == before.state.step
