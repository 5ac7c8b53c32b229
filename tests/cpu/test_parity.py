"""The real Megatron trainer on the CPU: the same losses and gradient norms in every layout, and those of `swift sft`.

Layouts sum in different orders and round intermediate values to bf16, so agreement is relative: loss to 1e-3, gradient
norm to two units in the last place of bf16. (A gradient norm that lacks a part of the embedding is off by 4.5 %.)
"""

import os
import subprocess
import sys

import pytest

from tests.forkserver.forkserver import SERVER_ENVIRONMENT, ForkServer, cache_environment
from tests.forkserver.logs import StepLog, grad_norms, losses, read_steps
from tests.forkserver.tiny import TinyProject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 4
LOSS_TOLERANCE = 1e-3
NORM_TOLERANCE = 2**-7

LAYOUTS: dict[str, tuple[int, dict[str, object]]] = {
    "one_rank": (1, {}),
    "dp2": (2, {}),
    "pp2": (2, {"pipeline_model_parallel_size": 2}),
    "tp2_sp": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": "true"}),
    "tp2": (2, {"tensor_model_parallel_size": 2}),
}


@pytest.fixture(scope="module")
def runs(
    fork_server: ForkServer, tiny_project: TinyProject, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[StepLog]]:
    """The steps of every layout."""
    folder = tmp_path_factory.mktemp("parity")
    for name, (nproc, flags) in LAYOUTS.items():
        arguments = tiny_project.arguments(folder / name, train_iters=STEPS, **flags)
        fork_server.run(arguments, nproc).check()
    return {name: read_steps(folder / name) for name in LAYOUTS}


@pytest.fixture(scope="module")
def plain(tiny_project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> list[StepLog]:
    """The same training by `swift sft` (transformers), in a process that knows nothing of the CPU platform."""
    folder = tmp_path_factory.mktemp("plain")
    flags = {
        "model": tiny_project.model, "model_type": "qwen3", "template": "qwen3", "dataset": tiny_project.data,
        "tuner_type": "full", "torch_dtype": "bfloat16", "max_length": 128, "max_steps": STEPS,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine", "warmup_ratio": 0, "weight_decay": 0.1, "adam_beta2": 0.95,
        "logging_steps": 1, "save_strategy": "no", "dataloader_num_workers": 0, "gradient_checkpointing": "false",
        "use_cpu": "true", "output_dir": folder,
    }  # fmt: skip
    words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    environment = {**os.environ, **SERVER_ENVIRONMENT, **cache_environment(folder / "cache")}
    command = [sys.executable, "-m", "swift.cli.sft", *words]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return read_steps(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_agree_with_plain_swift_sft(runs: dict[str, list[StepLog]], plain: list[StepLog], layout: str) -> None:
    assert len(plain) == STEPS and losses(plain)[-1] < losses(plain)[0] - 0.5
    assert losses(runs[layout]) == pytest.approx(losses(plain), rel=LOSS_TOLERANCE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_norms_agree_with_plain_swift_sft(
    runs: dict[str, list[StepLog]], plain: list[StepLog], layout: str
) -> None:
    assert grad_norms(runs[layout]) == pytest.approx(grad_norms(plain), rel=NORM_TOLERANCE)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "one_rank"])
def test_layouts_agree_with_one_rank(runs: dict[str, list[StepLog]], layout: str) -> None:
    assert losses(runs[layout]) == pytest.approx(losses(runs["one_rank"]), rel=LOSS_TOLERANCE)
    assert grad_norms(runs[layout]) == pytest.approx(grad_norms(runs["one_rank"]), rel=NORM_TOLERANCE)


def test_the_learning_rate_schedule_is_the_same_everywhere(
    runs: dict[str, list[StepLog]], plain: list[StepLog]
) -> None:
    rates = {name: [step.learning_rate for step in steps] for name, steps in runs.items()}
    for name in LAYOUTS:
        assert rates[name] == pytest.approx([step.learning_rate for step in plain], abs=1e-7), name
