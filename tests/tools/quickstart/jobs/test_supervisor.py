"""jobs.py, with small real processes: a failure is told, and nobody is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift_diloco.tools.quickstart.errors import QuickstartError
from swift_diloco.tools.quickstart.jobs import supervisor as jobs
from swift_diloco.tools.quickstart.jobs.supervisor import JobCommand, ProcessFailed, Supervisor, tail
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.net

LIMIT_S = 20.0

DETACHED = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid))
os.rename(sys.argv[1], sys.argv[2])
if sys.argv[3] == "stay": time.sleep(600)
"""

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(600)
"""


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor()
    yield supervisor
    supervisor.stop_all()
    assert supervisor.leftovers(limit_s=0) == {}


def python(folder: Path, name: str, code: str, *words: str) -> JobCommand:
    return JobCommand(name, (sys.executable, "-c", code, *words), folder / f"{name}.log", base=dict(os.environ))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    """Whether a process is gone, or is within a moment: a killed one is on its way for a little while."""
    wait_until(lambda: not alive(pid), f"the end of process {pid}", within_s=LIMIT_S)
    return True


def idle() -> None:
    """A tick that does nothing."""


def test_processes_that_end_well_are_waited_for(supervisor: Supervisor, tmp_path: Path) -> None:
    ticks: list[int] = []
    supervisor.start(python(tmp_path, "one", "import os; print(os.environ['WORD'])"))
    with pytest.raises(ProcessFailed):  # no WORD in its environment
        supervisor.wait(limit_s=LIMIT_S, what="one", tick=idle)
    good = JobCommand(
        "two", (sys.executable, "-c", "import os; print(os.environ['WORD'])"), tmp_path / "two.log", {"WORD": "hello"}
    )
    second = Supervisor()
    second.start(good)
    second.wait(limit_s=LIMIT_S, what="two", tick=lambda: ticks.append(1))
    second.stop_all()
    assert (tmp_path / "two.log").read_text() == "hello\n"
    assert second.exit_codes() == {"two": 0} and ticks


def test_a_failure_is_told_with_exit_code_and_the_end_of_its_log(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(python(tmp_path, "other", "import time; time.sleep(600)"))
    supervisor.start(python(tmp_path, "bad", "print('what went wrong', flush=True); raise SystemExit(7)"))
    with pytest.raises(
        ProcessFailed, match=r"bad ended with exit code 7; the last lines of .*bad.log:\n    what went wrong"
    ):
        supervisor.wait(limit_s=LIMIT_S, what="both", tick=idle)
    assert supervisor.running() == ["other"]
    supervisor.stop_all()
    assert supervisor.exit_codes() == {"other": -signal.SIGTERM, "bad": 7}


def test_death_by_signal_is_told(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(python(tmp_path, "killed", "import os; os.kill(os.getpid(), 9)"))
    with pytest.raises(ProcessFailed, match="killed was ended by signal 9"):
        supervisor.wait(limit_s=LIMIT_S, what="it", tick=idle)


def test_a_wait_has_a_limit_that_names_the_logs(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(python(tmp_path, "slow", "import time; time.sleep(600)"))
    with pytest.raises(ProcessFailed, match=r"the thing took more than 0 s; .*slow\.log"):
        supervisor.wait_until(lambda: False, limit_s=0, what="the thing", tick=idle)


@pytest.mark.parametrize("parent", ["stay", "leave"])
def test_a_detached_grandchild_is_found_and_ended(supervisor: Supervisor, tmp_path: Path, parent: str) -> None:
    path = tmp_path / "pid"
    supervisor.start(python(tmp_path, "parent", DETACHED, str(tmp_path / "pid.new"), str(path), parent))
    supervisor.wait_until(path.exists, limit_s=LIMIT_S, what="starting", tick=idle)
    if parent == "leave":
        supervisor.wait(limit_s=LIMIT_S, what="leaving", tick=idle)
    pid = int(path.read_text())
    assert alive(pid) and pid in supervisor.leftovers(limit_s=0)
    supervisor.stop_all()
    assert gone(pid)


def test_a_killed_job_is_gone_with_its_detached_children_and_may_be_started_again(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    supervisor.start(python(tmp_path, "other", "import time; time.sleep(600)"))
    supervisor.start(python(tmp_path, "victim", DETACHED, str(tmp_path / "pid.new"), str(path), "stay"))
    supervisor.wait_until(path.exists, limit_s=LIMIT_S, what="starting", tick=idle)
    pid = int(path.read_text())
    assert alive(pid)
    supervisor.kill("victim")
    assert gone(pid) and supervisor.running() == ["other"]
    supervisor.check()
    supervisor.start(python(tmp_path, "victim", "pass"))
    supervisor.wait_until(lambda: supervisor.running() == ["other"], limit_s=LIMIT_S, what="again", tick=idle)


def test_a_process_that_ignores_sigterm_is_killed(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "TERM_S", 0.3)
    supervisor.start(python(tmp_path, "stubborn", STUBBORN, str(tmp_path / "ready")))
    supervisor.wait_until((tmp_path / "ready").exists, limit_s=LIMIT_S, what="starting", tick=idle)
    supervisor.stop_all()
    assert supervisor.exit_codes() == {"stubborn": -signal.SIGKILL}


def test_a_process_of_another_run_is_not_ours(supervisor: Supervisor) -> None:
    environment = {**os.environ, jobs.MARK: "another token"}
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    try:
        assert supervisor.leftovers(limit_s=0) == {}
        supervisor.stop_all()
        assert other.poll() is None
    finally:
        other.communicate(b"\n")
    assert other.returncode == 0


def test_what_cannot_be_ended_is_named(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "TERM_S", 0.0)
    monkeypatch.setattr(jobs, "KILL_S", 0.0)
    monkeypatch.setattr(jobs, "marked_processes", lambda token: {2**22 + 1: "immortal"})
    with pytest.raises(QuickstartError, match="could not end these processes: .*immortal"):
        supervisor.stop_all()
    monkeypatch.undo()


def test_a_tail_is_short_and_an_empty_log_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    assert tail(log) == "    (the log is empty)"
    log.write_text("".join(f"line {i}\n\n" for i in range(5000)))
    assert tail(log).splitlines() == [f"    line {i}" for i in range(4980, 5000)]


def test_a_tail_ends_with_the_words_of_the_rank_not_of_its_launcher(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "[rank0]: KeyError: 0\n"
        "Train:  98%|█████| 118/120 [00:20<00:00,  6.11it/s]\rTrain:  99%|█████| 119/120 [00:25<00:00,  4.71it/s]\n"
        "E1129 20:10:38.974000 7539 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)\n"
        "Traceback (most recent call last):\n  raise ChildFailedError(\n"
    )
    assert tail(log) == "    [rank0]: KeyError: 0"


def test_a_command_can_be_typed(tmp_path: Path) -> None:
    command = JobCommand("one", ("program", "word"), tmp_path / "log", variables={"A": "1"}, base={"B": "2"})
    assert command.typed() == ["env", "A=1", "program", "word"]
