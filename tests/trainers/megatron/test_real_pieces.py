"""The pieces inside ms-swift's real Megatron trainer, on every kind of layout that is supported."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.forkserver.forkserver import ForkServer
from tests.forkserver.tiny import TinyProject
from tests.trainers.megatron.values import assemble, hugging_face

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LEARNING_RATE = 1e-3
STEPS = 4


@dataclass(frozen=True)
class Case:
    """One way to cut the model over ranks."""

    ranks: int
    flags: tuple[str, ...] = ()
    tied: bool = False
    data_parallel: int = 1


TP = ("--tensor_model_parallel_size", "2", "--sequence_parallel", "true")
PP = ("--pipeline_model_parallel_size", "2")
CASES = {
    "one rank": Case(1),
    "dp 2": Case(2, data_parallel=2),
    "tp 2": Case(2, TP),
    "pp 2": Case(2, PP),
    "dp 2, plain optimizer": Case(2, ("--use_distributed_optimizer", "false"), data_parallel=2),
    "tp 2, plain optimizer": Case(2, (*TP, "--use_distributed_optimizer", "false")),
    "dp 2, overlapped gather": Case(
        2, ("--overlap_param_gather", "true", "--overlap_grad_reduce", "true"), data_parallel=2
    ),
    "one rank, tied": Case(1, tied=True),
    "tp 2, tied, padded": Case(2, TP, tied=True),
    "pp 2, tied": Case(2, PP, tied=True),
}


@dataclass(frozen=True)
class Outcome:
    """What the probes of one run wrote down."""

    case: Case
    folder: Path
    output: Path
    model: Path

    @cached_property
    def reports(self) -> list[dict[str, Any]]:
        return [json.loads((self.folder / f"report-{rank}.json").read_text()) for rank in range(self.case.ranks)]

    def values(self, moment: str) -> dict[str, torch.Tensor]:
        """The global tensors, by their names in a Hugging Face model."""
        return hugging_face(assemble(self.folder, moment, self.case.ranks, self.reports[0]["shapes"]))


@pytest.fixture(scope="session")
def tied_model(fork_server: ForkServer, tiny_project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with tied embeddings of 513 rows, which two ranks must pad."""
    target = tmp_path_factory.mktemp("tied") / "model"
    fork_server.call("tests.trainers.megatron.pieces_probe:build_tied", [str(tiny_project.model), str(target)]).check()
    return target


@pytest.fixture(scope="session")
def outcomes() -> dict[str, Outcome]:
    """Runs already made, by the name of the case."""
    return {}


@pytest.fixture
def run(
    fork_server: ForkServer,
    tiny_project: TinyProject,
    tied_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    outcomes: dict[str, Outcome],
) -> Any:
    def outcome(name: str) -> Outcome:
        if name not in outcomes:
            case = CASES[name]
            folder, output = tmp_path_factory.mktemp("probe"), tmp_path_factory.mktemp("out")
            model = tied_model if case.tied else tiny_project.model
            flags = tiny_project.arguments(
                output, case.flags, model=model, lr=LEARNING_RATE, train_iters=STEPS, save_safetensors="true"
            )
            job = fork_server.start(
                ["pieces", str(folder), *flags], case.ranks, entry="tests.trainers.megatron.pieces_probe:main"
            )
            job.wait(120).check()
            outcomes[name] = Outcome(case, folder, output, model)
        return outcomes[name]

    return outcome


@pytest.mark.parametrize("name", CASES)
def test_layout_does_not_depend_on_how_the_model_is_cut(run: Any, name: str) -> None:
    whole = run("one rank, tied" if CASES[name].tied else "one rank")
    assert {report["fingerprint"] for report in run(name).reports} == {whole.reports[0]["fingerprint"]}


@pytest.mark.parametrize("name", CASES)
def test_every_element_is_owned_exactly_once(run: Any, name: str) -> None:
    outcome = run(name)
    assert [report["fault"] for report in outcome.reports] == [None] * outcome.case.ranks
    owned = sum(report["owned"] for report in outcome.reports)
    assert owned == sum(torch.Size(shape).numel() for shape in outcome.reports[0]["shapes"].values())


@pytest.mark.parametrize("name", CASES)
def test_values_read_before_training_are_those_of_the_model_file(run: Any, name: str) -> None:
    outcome = run(name)
    file = load_file(outcome.model / "model.safetensors")
    read = outcome.values("begin")
    assert read.keys() == file.keys()
    assert [key for key in file if not torch.equal(read[key], file[key].float())] == []


@pytest.mark.parametrize("name", CASES)
def test_values_read_at_the_last_step_are_those_exported(run: Any, name: str) -> None:
    outcome = run(name)
    file = load_file(outcome.output / f"checkpoint-{STEPS}" / "model.safetensors")
    read = outcome.values("end")
    assert read.keys() == file.keys()
    assert [key for key in file if not torch.equal(read[key].to(file[key].dtype), file[key])] == []


@pytest.mark.parametrize("name", CASES)
def test_writing_what_was_read_changes_no_bit(run: Any, name: str) -> None:
    outcome = run(name)
    unchanged = {"parameters": True, "masters": True}
    assert [report["write_back"] for report in outcome.reports] == [unchanged] * outcome.case.ranks


@pytest.mark.parametrize("name", CASES)
def test_installed_values_are_in_all_masters_and_parameters_of_all_ranks(run: Any, name: str) -> None:
    outcome = run(name)
    assert [report["wrong"] for report in outcome.reports] == [[]] * outcome.case.ranks


@pytest.mark.parametrize("name", CASES)
def test_next_step_starts_from_the_installed_values(run: Any, name: str) -> None:
    # Adam moves an element by at most the learning rate in a step here; a lost install would be off by 0.02 and more.
    moved = [report["moved"] for report in run(name).reports if report["moved"]]
    assert moved
    for mean, most in moved:
        assert 0.0 < mean <= most <= 1.5 * LEARNING_RATE


@pytest.mark.parametrize("name", CASES)
def test_tokens_of_a_step_are_the_supervised_labels_that_were_loaded(run: Any, name: str) -> None:
    outcome = run(name)
    loaded = [report["counted"] for report in outcome.reports]
    # Ranks of one data parallel replica load the same batches; replicas load different ones.
    distinct = loaded if outcome.case.data_parallel > 1 else loaded[:1]
    assert all(one == loaded[0] for one in loaded) or outcome.case.data_parallel > 1
    by_hand = [sum(sum(step) for step in steps) for steps in zip(*distinct, strict=True)]
    assert len(by_hand) == STEPS
    assert min(by_hand) > 0
    skipped = [False, 0]  # the probe has the last step skip its update
    for report in outcome.reports:
        assert report["steps"] == [*([True, tokens] for tokens in by_hand[:-1]), skipped]
