"""Real `swift sft` processes as islands beside a real syncer."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from swift_diloco.core.formats import tape_lines
from tests.e2e.harness import FAST, SyncerProcess, check_tape
from tests.forkserver.forkserver import ForkServer
from tests.forkserver.tiny import TinyProject
from tests.trainers.hf.jobs import PAIR, Job, arrays, logged, run_islands, wait_for_record, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_two_islands_end_with_equal_exports_bit_for_bit(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    watched = {"report_to": "tensorboard", "logging_dir": tmp_path / "board"}
    jobs = [Job(project, tmp_path / "out0", watched), Job(project, tmp_path / "out1", {"data_seed": 7})]
    with SyncerProcess(tmp_path / "run", *PAIR) as syncer:
        run_islands(swift_server, syncer, jobs)
        assert syncer.wait() == 0
        check_tape(syncer.tape(), min_islands=2)
        assert len(syncer.events(tape_lines.Commit)) >= 3
    first, second = weights(tmp_path / "out0"), weights(tmp_path / "out1")
    assert first == second
    assert first != weights(project.model), "training changed nothing"
    last = logged(tmp_path / "out0")[-1]
    assert last["diloco/outer_step"] >= 1
    assert last["diloco/pushed_bytes"] > 0 and last["diloco/fetched_bytes"] > 0
    board = b"".join(file.read_bytes() for file in (tmp_path / "board").rglob("events.*"))
    assert b"train/diloco/outer_step" in board


def test_a_two_rank_island_with_bf16_weights_ends_equal_to_one_of_one_rank(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    bf16 = {"torch_dtype": "bfloat16"}
    jobs = [
        Job(project, tmp_path / "out0", bf16, ranks=2),
        Job(project, tmp_path / "out1", {**bf16, "data_seed": 7}),
    ]
    with SyncerProcess(tmp_path / "run", *PAIR) as syncer:
        run_islands(swift_server, syncer, jobs)
        assert syncer.wait() == 0
        check_tape(syncer.tape(), min_islands=2)
        contributions = [part for line in syncer.events(tape_lines.Commit) for part in line.contributions]
    assert weights(tmp_path / "out0") == weights(tmp_path / "out1")
    per_step = {island: _tokens_per_step(contributions, island) for island in (0, 1)}
    assert per_step[0] == pytest.approx(2 * per_step[1], rel=0.2), "two ranks see twice the tokens"
    record = json.loads((tmp_path / "out0" / "checkpoint-8" / "diloco_record.json").read_text())
    assert record["iteration"] == 8
    masters = sorted((tmp_path / "out0" / "checkpoint-8").glob("diloco_masters_*.safetensors"))
    assert len(masters) == 2


def _tokens_per_step(contributions: list[tape_lines.Contribution], island: int) -> float:
    own = [part for part in contributions if part.island == island and part.steps]
    return sum(part.tokens for part in own) / sum(part.steps for part in own)


def test_only_adapters_and_saved_modules_travel_with_lora(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    lora = {"tuner_type": "lora", "torch_dtype": "bfloat16", "target_modules": "all-linear", "lora_rank": 4}
    jobs = [
        Job(project, tmp_path / "out0", {**lora, "modules_to_save": "lm_head"}, ranks=2),
        Job(project, tmp_path / "out1", {**lora, "modules_to_save": "lm_head", "data_seed": 7}),
    ]
    with SyncerProcess(tmp_path / "run", *PAIR) as syncer:
        run_islands(swift_server, syncer, jobs)
        assert syncer.wait() == 0
    first = weights(tmp_path / "out0", file="adapter_model.safetensors")
    assert first == weights(tmp_path / "out1", file="adapter_model.safetensors")
    assert any("lora_B" in name for name in first) and any("lm_head" in name for name in first)
    assert all(any(values) for name, values in first.items() if "lora_B" in name), "lora_B starts at zero"
    elements = sum(values.size for values in arrays(tmp_path / "out0", file="adapter_model.safetensors").values())
    last = logged(tmp_path / "out0")[-1]
    # A push or fetch of everything is 4 bytes for each trained element: whole numbers of fragments, at most 8 rounds.
    assert 0 < float(str(last["diloco/fetched_bytes"])) <= 4 * elements * 8


def test_an_island_that_does_not_learn_and_one_that_does_meet_in_the_middle(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path
) -> None:
    """One round at the last step, plain average, outer learning rate 1: T = T0 + (0 + (theta - T0)) / 2 exactly."""
    once = ("--sync-every-steps", "8", "--fragments", "1", "--merge", "avg", "--weights", "equal")
    trained = {"data_seed": 7}
    alone = Job(project, tmp_path / "alone", trained, plugin=False).start(swift_server)
    alone.wait().check()
    jobs = [Job(project, tmp_path / "out0", {"learning_rate": 0}), Job(project, tmp_path / "out1", trained)]
    with SyncerProcess(tmp_path / "run", *PAIR, *once) as syncer:
        run_islands(swift_server, syncer, jobs)
        assert syncer.wait() == 0
        commits = [line for line in syncer.events(tape_lines.Commit) if not line.void]
        assert [[part.steps for part in line.contributions] for line in commits] == [[8, 8]]
    start, theta, merged = arrays(project.model), arrays(tmp_path / "alone"), arrays(tmp_path / "out0")
    assert start.keys() == theta.keys() == merged.keys()
    for name in start:
        expected = start[name] + (theta[name] - start[name]) * np.float32(0.5)
        assert np.array_equal(merged[name], expected), name
    assert weights(tmp_path / "out0") == weights(tmp_path / "out1")


@pytest.mark.parametrize("only_model", [False, True])
def test_a_killed_island_resumes_with_the_learning_rate_of_the_uninterrupted_run(
    swift_server: ForkServer, project: TinyProject, tmp_path: Path, only_model: bool
) -> None:
    # Alone in its run, so that it need not wait for anybody; many steps after the save, so that it dies in between.
    flags = {"max_steps": 400, "save_steps": 5, "save_total_limit": 2}
    with SyncerProcess(tmp_path / "run", *FAST, "--island-lease-s", "2") as syncer:
        killed = Job(project, tmp_path / "out", flags).start(swift_server, 0, syncer.address)
        checkpoint = wait_for_record(tmp_path / "out", killed)
        killed.kill()
        killed.wait()
        step = int(checkpoint.name.partition("-")[2])
        again: dict[str, object] = {
            **flags, "max_steps": step + 4, "resume_from_checkpoint": checkpoint, "resume_only_model": only_model,
            "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": '{"min_lr": 1e-5}',
        }  # fmt: skip
        job = Job(project, tmp_path / "again", again).start(swift_server, 0, syncer.address)
        text = job.wait().check().text()
        assert syncer.wait() == 0
        check_tape(syncer.tape())
    assert "resuming from the record" in text
    steps = logged(tmp_path / "again")
    assert steps[0]["global_step/max_steps"] == f"{step + 1}/{step + 4}"
    if only_model:  # else the schedule is the saved one, of 400 steps
        progress = (step + 1) / (step + 4)
        expected = 1e-5 + (1e-3 - 1e-5) * 0.5 * (1 + math.cos(math.pi * progress))
        assert steps[0]["learning_rate"] == pytest.approx(expected, rel=1e-3)
    assert (tmp_path / "again" / f"checkpoint-{step + 4}" / "diloco_record.json").exists()
