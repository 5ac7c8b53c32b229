"""Saving and resuming: with optimizer state the loss curve goes on bit for bit, without it from the same weights."""

from pathlib import Path

import pytest

from tests.forkserver.forkserver import ForkServer
from tests.forkserver.logs import StepLog, losses, read_steps
from tests.forkserver.tiny import TinyProject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 8
SAVED_AT = 4
BF16_TOLERANCE = 1e-3


@pytest.fixture(scope="module", params=[1, 2], ids=["one_rank", "dp2"])
def uninterrupted(
    request: pytest.FixtureRequest,
    fork_server: ForkServer,
    tiny_project: TinyProject,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[int, Path]:
    """Ranks and output folder of a run of 8 steps that saved at steps 4 and 8."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    fork_server.run(tiny_project.arguments(folder, train_iters=STEPS, save_steps=SAVED_AT), request.param).check()
    return request.param, folder


def resume(
    server: ForkServer, project: TinyProject, checkpoint: Path, nproc: int, output: Path, **flags: object
) -> list[StepLog]:
    arguments = project.arguments(output, train_iters=STEPS, mcore_model=checkpoint, finetune="false", **flags)
    server.run(arguments, nproc).check()
    return read_steps(output)


def test_resuming_with_optimizer_state_is_bit_equal(
    fork_server: ForkServer, tiny_project: TinyProject, uninterrupted: tuple[int, Path], tmp_path: Path
) -> None:
    nproc, folder = uninterrupted
    steps = resume(fork_server, tiny_project, folder / f"checkpoint-{SAVED_AT}", nproc, tmp_path)
    assert steps == read_steps(folder)[SAVED_AT:]


def test_resuming_in_another_layout_goes_on_to_bf16_accuracy(
    fork_server: ForkServer, tiny_project: TinyProject, uninterrupted: tuple[int, Path], tmp_path: Path
) -> None:
    nproc, folder = uninterrupted
    steps = resume(fork_server, tiny_project, folder / f"checkpoint-{SAVED_AT}", 3 - nproc, tmp_path)
    assert losses(steps) == pytest.approx(losses(read_steps(folder)[SAVED_AT:]), rel=BF16_TOLERANCE)


def test_resuming_without_optimizer_state_goes_on_from_the_weights(
    fork_server: ForkServer, tiny_project: TinyProject, uninterrupted: tuple[int, Path], tmp_path: Path
) -> None:
    nproc, folder = uninterrupted
    checkpoint = folder / f"checkpoint-{SAVED_AT}"
    steps = resume(fork_server, tiny_project, checkpoint, nproc, tmp_path, no_load_optim="true")
    before = read_steps(folder)
    assert [step.iteration for step in steps] == [5, 6, 7, 8]
    # The first loss is that of the saved weights on the next batch; after it, the moments and the learning rate that
    # were not loaded make another, still falling, curve.
    assert steps[0].loss == before[SAVED_AT].loss and steps[0].grad_norm == before[SAVED_AT].grad_norm
    assert steps[-1].loss < steps[0].loss


def test_a_checkpoint_holds_optimizer_state_only_when_it_is_saved(
    fork_server: ForkServer, tiny_project: TinyProject, tmp_path: Path
) -> None:
    fork_server.run(tiny_project.arguments(tmp_path, train_iters=2, save_steps=2, no_save_optim="true")).check()
    steps = resume(fork_server, tiny_project, tmp_path / "checkpoint-2", 1, tmp_path / "resumed", no_load_optim="true")
    assert [step.iteration for step in steps] == [3, 4, 5, 6, 7, 8]


def test_a_checkpoint_written_by_a_helper_process_is_the_same(
    fork_server: ForkServer, tiny_project: TinyProject, uninterrupted: tuple[int, Path], tmp_path: Path
) -> None:
    nproc, folder = uninterrupted
    arguments = tiny_project.arguments(
        tmp_path / "saved",
        train_iters=STEPS,
        save_steps=SAVED_AT,
        async_save="true",
        use_persistent_ckpt_worker="true",
    )
    fork_server.run(arguments, nproc).check()
    assert read_steps(tmp_path / "saved") == read_steps(folder)
    checkpoint = tmp_path / "saved" / f"checkpoint-{SAVED_AT}"
    steps = resume(fork_server, tiny_project, checkpoint, nproc, tmp_path / "resumed")
    assert steps == read_steps(folder)[SAVED_AT:]
