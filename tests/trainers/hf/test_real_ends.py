"""How real `swift sft` islands end: outside a step, with a best model, refused, paused, or with nothing left to do."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.tools.admin import cli as admin
from swift_diloco.tools.audit.auditing import audit
from swift_diloco.tools.quickstart.jobs.commands import free_port
from tests.e2e.harness import FAST, SyncerProcess, check_tape
from tests.fakes.waiting import wait_until
from tests.forkserver.forkserver import ForkServer
from tests.forkserver.tiny import TinyProject
from tests.trainers.hf.jobs import PAIR, START_S, Job, logged, records, run_islands, wait_for_record, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FINAL = "the final cut is in the model"


def test_streaming_data_that_end_early_end_the_island_with_the_final_cut_saved(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    # 8 steps are announced, the data are good for 4; the epoch's end stops the training, not a step.
    flags = {"dataset": f"{project.data}#16", "streaming": "true", "max_epochs": 1, "save_steps": 3}
    jobs = [Job(project, tmp_path / "out0", flags), Job(project, tmp_path / "out1", {**flags, "learning_rate": 1e-4})]
    with SyncerProcess(tmp_path / "run", *PAIR, "--sync-every-steps", "2") as syncer:
        running = run_islands(swift_server, syncer, jobs)
        assert syncer.wait() == 0
        check_tape(syncer.tape(), min_islands=2)
    assert len(logged(tmp_path / "out0")) == 4
    assert all(FINAL in job.text() for job in running)
    assert weights(tmp_path / "out0", step=4) == weights(tmp_path / "out1", step=4)


def test_the_best_model_in_memory_does_not_replace_the_final_values_on_disk(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    # Told that a high loss is good, the trainer finds its first checkpoint best.
    best = {
        "split_dataset_ratio": 0.05, "eval_steps": 4, "save_steps": 4, "load_best_model_at_end": "true",
        "greater_is_better": "true",
    }  # fmt: skip
    with SyncerProcess(tmp_path / "run", *FAST) as syncer:
        (job,) = run_islands(swift_server, syncer, [Job(project, tmp_path / "out", best)])
        assert syncer.wait() == 0
    out = tmp_path / "out"
    told = (
        f"--load_best_model_at_end put {out}/checkpoint-4 into the model in memory; the run's final values are in {out}"
    )
    assert f"{told}/checkpoint-8" in job.text()
    assert weights(out, step=8) != weights(out, step=4)


def test_islands_that_train_different_tensors_are_told_which(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    with SyncerProcess(tmp_path / "run", *FAST) as syncer:
        first = Job(project, tmp_path / "out0", {"max_steps": 1000}).start(swift_server, 0, syncer.address)
        wait_until(lambda: "global values of" in first.text(), "it joins", within_s=START_S)
        flags = {"freeze_parameters": "model.embed_tokens", "report_to": "tensorboard"}
        second = Job(project, tmp_path / "out1", flags).start(swift_server, 1, syncer.address)
        result = second.wait()
        first.kill()
        first.wait()
    assert result.returncodes == (2,)
    assert "expected tensor 'model.embed_tokens.weight'" in result.text()
    assert "Traceback" not in result.text()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"task_type": "seq_cls", "num_labels": 2}, "trainer class is not supported on islands yet: found Trainer"),
        ({"optim": "adalomo"}, "--optim is not supported on islands yet: found adalomo"),
        ({"save_strategy": "best"}, "--save_strategy is not supported on islands yet: found best"),
    ],
)
def test_jobs_that_cannot_be_islands_are_refused_in_one_line(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path, flags: dict[str, object], named: str
) -> None:
    if "num_labels" in flags:
        data = tmp_path / "labels.jsonl"
        line = {"messages": [{"role": "user", "content": "what is 1+1?"}], "label": 1}
        data.write_text(f"{json.dumps(line)}\n" * 8)
        flags = {**flags, "dataset": data}
    result = Job(project, tmp_path / "out", flags).start(swift_server, 0, "tcp://127.0.0.1:9").wait()
    assert result.returncodes == (2,)
    assert f"swift-diloco: error: {named}" in result.text()
    assert "Traceback" not in result.text()


def test_a_two_rank_island_parks_as_one_until_the_other_island_is_back(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    # bf16 weights, so that the restart goes through the FP32 copies beside its checkpoint.
    flags = {"max_steps": 40, "save_steps": 5, "torch_dtype": "bfloat16"}
    with SyncerProcess(tmp_path / "run", *PAIR, "--sync-every-steps", "5") as syncer:
        staying = Job(project, tmp_path / "out0", flags, ranks=2).start(swift_server, 0, syncer.address)
        killed = Job(project, tmp_path / "out1", flags).start(swift_server, 1, syncer.address)
        checkpoint = wait_for_record(tmp_path / "out1", killed)
        killed.kill()
        killed.wait()
        wait_until(lambda: "paused by the syncer" in staying.text(), "it is parked", within_s=START_S)
        assert FINAL not in staying.text(), "it was parked before its last step"
        again = Job(project, tmp_path / "again", {**flags, "resume_from_checkpoint": checkpoint})
        restarted = again.start(swift_server, 1, syncer.address)
        text = restarted.wait().check().text()
        staying.wait().check()
        assert syncer.wait() == 0
        check_tape(syncer.tape(), min_islands=2)
    report = audit(tmp_path / "run" / "tape.jsonl")
    assert report.ok, report.violations
    assert "resuming from the record" in text
    assert "cannot be used" not in text
    assert "the pause is over" in staying.text()
    assert weights(tmp_path / "out0", step=40) == weights(tmp_path / "again", step=40)


def test_a_job_resumed_at_its_last_step_saves_the_final_cut_and_trains_nothing(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    with SyncerProcess(tmp_path / "first", *FAST) as syncer:
        run_islands(swift_server, syncer, [Job(project, tmp_path / "out")])
    start = weights(tmp_path / "out")
    # A syncer of another run, which asks the island for the initial values.
    flags = {"resume_from_checkpoint": tmp_path / "out" / "checkpoint-8", "diloco_init_probe_s": 1}
    with SyncerProcess(tmp_path / "second", *FAST) as syncer:
        (job,) = run_islands(swift_server, syncer, [Job(project, tmp_path / "again", flags)])
        assert syncer.wait() == 0
    assert "nothing is left to train at step 8" in job.text()
    assert not (tmp_path / "again" / "checkpoint-9").exists()
    assert weights(tmp_path / "again") == start


def test_islands_outlive_the_syncer_which_resumes_from_its_checkpoint(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    flags = {"max_steps": 60, "save_steps": 60}
    kept = ("--bind", address, "--checkpoint-path", str(tmp_path / "kept"), "--durable-publish")
    with SyncerProcess(tmp_path / "run", *PAIR, *kept) as syncer:
        assert syncer.address == address
        jobs = [Job(project, tmp_path / "out0", flags), Job(project, tmp_path / "out1", {**flags, "data_seed": 7})]
        running = [job.start(swift_server, island, address) for island, job in enumerate(jobs)]
        wait_until(lambda: len(syncer.events(tape_lines.Commit)) >= 3, "rounds are taken", within_s=START_S)
        syncer.process.kill()
    with SyncerProcess(tmp_path / "run", *PAIR, *kept, "--resume") as syncer:
        for job in running:
            job.wait().check()
        assert syncer.wait() == 0
        assert len(syncer.events(tape_lines.Resumed)) == 1
    # A commit on the tape may be taken again when the syncer died before it could be published.
    report = audit(tmp_path / "run" / "tape.jsonl")
    assert report.ok, report.violations
    assert weights(tmp_path / "out0", step=60) == weights(tmp_path / "out1", step=60)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_operator_has_a_parked_island_save_twice_and_stop(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path, accumulation: int
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    flags = {"max_steps": 5000, "save_steps": 5000, "gradient_accumulation_steps": accumulation}
    with SyncerProcess(run, *FAST) as syncer:
        job = Job(project, out, flags, ranks=2).start(swift_server, 0, syncer.address)
        wait_until(lambda: len(syncer.events(tape_lines.Commit)) >= 1, "a round is taken", within_s=START_S)
        order("set", "min_islands=2", "--run-dir", str(run))
        wait_until(lambda: "paused by the syncer" in job.text(), "it is parked")
        order("save", "--run-dir", str(run))  # met at the end of a step
        wait_until(lambda: len(records(out)) == 1, "it saves where it is parked")
        (record,) = records(out)
        first = written_at(record)
        order("save", "--run-dir", str(run))  # met at the gate before the next step
        wait_until(lambda: written_at(record) > first, "it saves again")
        assert records(out) == [record], "it was parked all the time"
        order("save-and-stop", "--run-dir", str(run))
        job.wait().check()
    assert FINAL not in job.text()
    # The step has begun. The trainer looks at the order after each micro-batch: only the last one updates the model.
    step = int(record.parent.name.partition("-")[2])
    saved = [int(each.parent.name.partition("-")[2]) for each in records(out)]
    assert saved == ([step, step + 1] if accumulation == 1 else [step])


def order(*words: str) -> None:
    """`swift-diloco admin`."""
    assert admin.main(list(words)) == 0


def written_at(file: Path) -> int:
    """When a file was written (ns), 0 while it is being replaced."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def test_ctrl_c_ends_an_island_at_once_and_the_syncer_sees_it(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    with SyncerProcess(tmp_path / "run", *FAST) as syncer:
        job = Job(project, tmp_path / "out", {"max_steps": 5000}).start(swift_server, 0, syncer.address)
        wait_until(lambda: len(syncer.events(tape_lines.Commit)) >= 1, "a round is taken", within_s=START_S)
        job.kill(number=signal.SIGINT)
        result = job.wait(30)
        assert not result.timed_out and result.returncodes != (0,)
        wait_until(lambda: syncer.events(tape_lines.Left), "the syncer sees it", within_s=10)
