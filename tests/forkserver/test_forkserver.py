"""The fork server: return codes, logs, signals, time limits, jobs side by side, and nothing left behind."""

import signal
from pathlib import Path

import pytest

from swift_diloco.tools.quickstart.jobs.commands import free_port
from tests.fakes.waiting import wait_until
from tests.forkserver.forkserver import ForkServer, RunningJob, rank_environment
from tests.forkserver.logs import read_steps
from tests.forkserver.tiny import TinyProject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TASKS = "tests.forkserver.tasks"


def wait_for_text(job: RunningJob, text: str, rank: int = 0) -> None:
    wait_until(lambda: text in job.text(rank) or job.finished, f"{text!r} from rank {rank}")
    assert text in job.text(rank), job.text(rank)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_return_codes_are_those_of_each_rank(fork_server: ForkServer) -> None:
    job = fork_server.start(["0", "3"], 2, entry=f"{TASKS}:exit_with_own_code")
    job.fail_together = False
    assert job.wait(60).returncodes == (0, 3)


def test_an_exception_is_return_code_1_with_its_traceback_in_the_log(fork_server: ForkServer) -> None:
    result = fork_server.call(f"{TASKS}:fail")
    assert result.returncodes == (1,)
    assert "ValueError: on purpose" in result.text()
    with pytest.raises(AssertionError, match="ValueError: on purpose"):
        result.check()


def test_ranks_see_their_command_line_environment_and_folder(fork_server: ForkServer, tmp_path: Path) -> None:
    job = fork_server.start(["word"], 2, env={"EXTRA": "value"}, cwd=tmp_path, entry=f"{TASKS}:describe")
    result = job.wait(60).check()
    assert result.text(1).split() == ["word", "1", "2", "value", str(tmp_path)]


def test_a_killed_rank_has_minus_the_signal_and_ends_the_others(fork_server: ForkServer) -> None:
    job = fork_server.start([], 2, entry=f"{TASKS}:sleep_forever")
    wait_for_text(job, "asleep", 1)
    job.kill(1, signal.SIGKILL)
    assert job.wait(30).returncodes == (-signal.SIGTERM, -signal.SIGKILL)


def test_a_job_over_its_time_is_killed_and_says_so(fork_server: ForkServer) -> None:
    result = fork_server.start([], entry=f"{TASKS}:sleep_forever").wait(0.5)
    assert result.timed_out and result.returncodes == (-signal.SIGKILL,)
    with pytest.raises(AssertionError, match="timed out"):
        result.check()


def test_closing_ends_ranks_and_their_helper_processes(tmp_path: Path) -> None:
    with ForkServer(tmp_path) as server:
        job = server.start([], entry=f"{TASKS}:sleep_with_child")
        wait_for_text(job, "child")
        child = int(job.text().split()[-1])
        assert is_alive(child) and is_alive(job.pids[0])
    wait_until(lambda: not is_alive(child) and not is_alive(job.pids[0]), "the end of both", within_s=10.0)


def test_a_mistake_of_the_user_is_one_line_and_exit_code_2(
    fork_server: ForkServer, tiny_project: TinyProject, tmp_path: Path
) -> None:
    result = fork_server.run(tiny_project.arguments(tmp_path, fp8_format="hybrid"))
    assert result.returncodes == (2,)
    assert len(result.text().splitlines()) == 1 and "--fp8_format hybrid" in result.text()


def test_two_trainers_run_side_by_side_on_one_data_set(
    fork_server: ForkServer, tiny_project: TinyProject, tmp_path: Path
) -> None:
    jobs = [fork_server.start(tiny_project.arguments(tmp_path / name), cwd=tmp_path) for name in ("a", "b")]
    for job in jobs:
        job.wait(90).check()
    first, second = (read_steps(tmp_path / name) for name in ("a", "b"))
    assert first == second and [step.iteration for step in first] == [1, 2, 3, 4]


def test_rank_environment_is_what_torchrun_sets() -> None:
    port = free_port()
    assert rank_environment(1, 2, port)["MASTER_PORT"] == str(port)
    assert rank_environment(1, 2, port)["RANK"] == "1" and rank_environment(1, 2, port)["WORLD_SIZE"] == "2"
