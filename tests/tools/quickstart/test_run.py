"""run.py as a real process with fake trainers: the whole course, failures, Ctrl-C; and the real thing (slow)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swift_diloco.tools.quickstart.jobs.supervisor import POLL_S
from swift_diloco.tools.quickstart.result.figures import read_tape

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 40
REAL_S = 1200
"""With the real trainer; on a slow machine, beside other tests, it takes half as long."""

WATCH = "QUICKSTART_TEST"
"""Environment variable by which a test finds whatever its run left behind."""

Process = subprocess.Popen[str]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), WATCH: str(tmp_path)}


def left_behind(tmp_path: Path) -> list[str]:
    """Living processes that inherited this test's variable."""
    wanted = f"{WATCH}={tmp_path}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Iterator["Starter"]:
    starter = Starter(tmp_path, environment)
    yield starter
    if starter.process is not None and starter.process.poll() is None:
        starter.process.kill()
        starter.process.communicate()
    assert left_behind(tmp_path) == []


class Starter:
    """Starts the quickstart with fakes, in `tmp_path/out`."""

    def __init__(self, tmp_path: Path, environment: dict[str, str]) -> None:
        self.out = tmp_path / "out"
        self._tmp_path = tmp_path
        self._environment = environment
        self.process: Process | None = None

    def __call__(self, *words: str, **variables: str) -> Process:
        argv = [sys.executable, "-m", "tests.tools.quickstart.fake_run", str(self._tmp_path), "--out", str(self.out)]
        self.process = subprocess.Popen(
            [*argv, "--steps", "30", *words],
            env={**self._environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process


@pytest.mark.net
def test_a_good_run_writes_both_reports_and_exits_with_0(start: Starter) -> None:
    process = start("patient")
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (0, ""), out
    report = json.loads((start.out / "report.json").read_text())
    assert report["passed"] is True
    assert [island["steps"] for island in report["islands"]] == [30, 30]
    assert (report["held_out_loss_before"], report["held_out_loss_after"]) == (7.5, 5.0)
    assert report["alone"]["held_out_loss"] == 5.1
    assert report["outer_steps"] == 6 and report["bytes_pushed"] == 12 * 4096
    assert report["final_digests"]["0"] == report["final_digests"]["1"]
    assert sorted(report["commands"]) == ["alone", "island-0", "island-1"]
    assert "plot-loss" in (start.out / "report.html").read_text()
    assert "held-out loss 7.5000 -> 5.0000 (alone 5.1000)" in out


@pytest.mark.net
def test_islands_that_end_with_different_models_fail_the_run(start: Starter) -> None:
    process = start("patient", FAKE_FORK="island-1")
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "FAILED one model at the end" in out


@pytest.mark.net
@pytest.mark.parametrize("job", ["island-0", "island-1", "alone"])
def test_a_failing_job_ends_the_run_with_its_last_words(start: Starter, job: str) -> None:
    process = start("patient", FAKE_FAIL=job, FAKE_SYNCER="" if job == "alone" else "stay")
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert f"{job} ended with exit code 3" in err and f"RuntimeError: {job} cannot go on" in err


@pytest.mark.net
def test_a_syncer_that_does_not_leave_fails_the_run_and_is_ended(start: Starter) -> None:
    process = start(FAKE_SYNCER="stay")
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "these processes still run" in err and "fake_megatron syncer" in err


@pytest.mark.net
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nobody(start: Starter, number: signal.Signals) -> None:
    process = start(FAKE_HANG="island-1", FAKE_SYNCER="stay")
    for _ in range(int(LIMIT_S / POLL_S)):
        if (start.out / "island-1.hangs").exists():
            break
        with pytest.raises(subprocess.TimeoutExpired):  # it must not end by itself
            process.wait(timeout=POLL_S)
    process.send_signal(number)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "interrupted; all processes are stopped" in err


@pytest.mark.slow
@pytest.mark.timeout(REAL_S + 10)
def test_the_real_thing_trains_one_model_on_two_islands(start: Starter, tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("swift-diloco")),
        "quickstart",
        "--steps",
        "80",
        "--out",
        str(start.out),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, WATCH: str(tmp_path)}, timeout=REAL_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((start.out / "report.json").read_text())
    assert report["passed"] is True
    assert len(report["final_digests"]) == 2 and len(set(report["final_digests"].values())) == 1
    assert report["held_out_loss_after"] < 0.8 * report["held_out_loss_before"]
    assert report["examples"] >= 2000 and report["outer_steps"] >= 8
    for island in report["islands"]:
        assert island["steps"] == 80
        assert island["final_loss"] < 0.8 * island["first_loss"]
        assert 80 * 16 * 15 < island["tokens"] < 80 * 16 * 40  # 16 answers a step of about 20 tokens
    assert report["bytes_pushed"] >= 2 * 4 * report["parameters"]  # every fragment, from both islands, in FP32
    tape = read_tape(start.out / "syncer" / "tape.jsonl")
    merged = {
        (island, fragment): sum(
            part.steps
            for commit in tape.commits
            for part in commit.contributions
            if (part.island, commit.fragment) == (island, fragment)
        )
        for island in range(2)
        for fragment in range(tape.fragments)
    }
    assert merged == dict.fromkeys(merged, 80) and len(merged) == 2 * 4  # no local step is lost, none counts twice


@pytest.mark.slow
@pytest.mark.timeout(REAL_S + 10)
def test_the_real_thing_survives_the_death_of_an_island_and_of_the_syncer(start: Starter, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("swift-diloco")), "quickstart", "--chaos", "--steps", "140"]
    done = subprocess.run(
        [*command, "--out", str(start.out)],
        capture_output=True,
        text=True,
        env={**os.environ, WATCH: str(tmp_path)},
        timeout=REAL_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((start.out / "report.json").read_text())
    assert [moment["what"].split(" is ")[1].split(" ")[0] for moment in report["moments"]] == [
        "killed",
        "started",
        "killed",
        "started",
    ]
    assert {check["name"] for check in report["checks"]} >= {"the killed came back", "nothing was merged twice"}
    assert (start.out / "report.html").read_text().count('class="mark"') == 16
