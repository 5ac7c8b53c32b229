"""Reading ms-swift's training log."""

import json
from pathlib import Path

import pytest

from tests.forkserver.logs import StepLog, grad_norms, losses, read_steps


def write_log(folder: Path, *lines: dict[str, object]) -> None:
    folder.mkdir(parents=True)
    (folder / "logging.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_steps_of_the_megatron_trainer_are_read(tmp_path: Path) -> None:
    line = {"loss": 6.25, "grad_norm": 6.5, "learning_rate": 1e-3, "iteration": "1/8"}
    write_log(tmp_path / "v0", line, {"last_model_checkpoint": None})
    steps = read_steps(tmp_path)
    assert steps == [StepLog(1, 6.25, 6.5, 1e-3)]
    assert losses(steps) == [6.25] and grad_norms(steps) == [6.5]


def test_steps_of_the_transformers_trainer_are_read_in_order(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"loss": "5.5", "grad_norm": "3.5", "learning_rate": "0.0005", "global_step/max_steps": f"{step}/4"}
        for step in (2, 1)
    ]
    write_log(tmp_path / "out", *lines, {"train_loss": 5.8})
    assert [step.iteration for step in read_steps(tmp_path)] == [1, 2]


def test_a_missing_log_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        read_steps(tmp_path)
