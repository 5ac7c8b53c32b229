"""A mixture of experts on the CPU: every layout gives the losses and gradient norms of one rank, and resumes."""

from pathlib import Path

import pytest

from tests.cpu.test_parity import LOSS_TOLERANCE, NORM_TOLERANCE
from tests.forkserver.forkserver import ForkServer
from tests.forkserver.logs import StepLog, grad_norms, losses, read_steps
from tests.forkserver.tiny import TinyProject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 4
SAVED_AT = 2
LAYOUTS: dict[str, tuple[int, dict[str, object]]] = {
    "one_rank": (1, {}),
    "ep2": (2, {"expert_model_parallel_size": 2}),
    "tp2_ep2": (
        2,
        {
            "tensor_model_parallel_size": 2,
            "sequence_parallel": "true",
            "expert_model_parallel_size": 2,
            "expert_tensor_parallel_size": 1,
        },
    ),
}


@pytest.fixture(scope="module")
def project(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> TinyProject:
    folder = tmp_path_factory.mktemp("tiny_experts")
    fork_server.call("tests.forkserver.tiny:build_from_command_line", [str(folder), "qwen3_moe"]).check()
    return TinyProject(folder, "qwen3_moe")


@pytest.fixture(scope="module")
def folder(fork_server: ForkServer, project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run per layout, below a folder of its name."""
    folder = tmp_path_factory.mktemp("experts")
    for name, (nproc, flags) in LAYOUTS.items():
        arguments = project.arguments(folder / name, train_iters=STEPS, save_steps=SAVED_AT, **flags)
        fork_server.run(arguments, nproc).check()
    return folder


def steps(folder: Path, layout: str) -> list[StepLog]:
    return read_steps(folder / layout)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "one_rank"])
def test_expert_layouts_agree_with_one_rank(folder: Path, layout: str) -> None:
    found, expected = steps(folder, layout), steps(folder, "one_rank")
    assert len(expected) == STEPS and expected[-1].loss < expected[0].loss - 0.3
    assert losses(found) == pytest.approx(losses(expected), rel=LOSS_TOLERANCE)
    assert grad_norms(found) == pytest.approx(grad_norms(expected), rel=NORM_TOLERANCE)


def test_experts_resume_with_optimizer_state_bit_for_bit(
    fork_server: ForkServer, project: TinyProject, folder: Path, tmp_path: Path
) -> None:
    nproc, flags = LAYOUTS["ep2"]
    arguments = project.arguments(
        tmp_path,
        train_iters=STEPS,
        mcore_model=folder / "ep2" / f"checkpoint-{SAVED_AT}",
        finetune="false",
        **flags,
    )
    fork_server.run(arguments, nproc).check()
    assert read_steps(tmp_path) == steps(folder, "ep2")[SAVED_AT:]
