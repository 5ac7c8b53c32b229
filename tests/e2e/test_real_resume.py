"""Real `megatron sft` islands that are killed and come back, beside a real syncer: values bit for bit, and the LR.

One life trains two steps, saves and is killed; then the same checkpoint is resumed in each of the three ways, while the
global values are as they were (keep), and after a fake island of the same model has moved them: with the saved anchors
(shift) and without (overwrite). Each resumed life is killed as soon as it has started, so the syncer's state stays.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.layout.tensors import TensorSpec
from swift_diloco.island.files.record_files import RECORD_FILE
from tests.e2e.harness import FAST, SyncerProcess, check_tape
from tests.fakes.trial import Hold, Trial
from tests.fakes.waiting import wait_until
from tests.forkserver.forkserver import ForkServer, RunningJob
from tests.forkserver.logs import read_steps
from tests.forkserver.tiny import TinyProject
from tests.trainers.megatron.values import assemble

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SAVED_AT = 2
STEPS = 6
JOB_S = 100.0
SCHEDULE = {"lr_decay_style": "cosine", "min_lr": 1e-5, "lr_warmup_iters": 3, "train_iters": STEPS}

WAYS: dict[str, dict[str, Any]] = {
    "with optimizer": {"mcore_model": "CHECKPOINT", "finetune": "false"},
    "without optimizer": {"mcore_model": "CHECKPOINT", "finetune": "false", "no_load_optim": "true"},
    "safetensors": {"model": "CHECKPOINT", "finetune": "false"},
}
"""The three ways in which ms-swift goes on from a checkpoint."""
ROWS = ("kept", "shifted", "overwritten")


@dataclass(frozen=True)
class Life:
    """One start of a real island, and what its probe wrote down."""

    folder: Path
    ranks: int
    job: RunningJob

    def facts(self, moment: str) -> list[dict[str, Any]]:
        return [json.loads((self.folder / f"{moment}-{rank}.json").read_text()) for rank in range(self.ranks)]

    def specs(self) -> tuple[TensorSpec, ...]:
        return msgspec.json.decode((self.folder / "layout.json").read_bytes(), type=tuple[TensorSpec, ...])

    def values(self, moment: str) -> dict[str, torch.Tensor]:
        return assemble(self.folder, moment, self.ranks, {spec.name: spec.shape for spec in self.specs()})

    def rates(self) -> dict[int, list[list[float]]]:
        """Iteration -> learning rate and weight decay of each group of rank 0."""
        lines = (self.folder / "rates-0.jsonl").read_text().splitlines()
        return dict(map(json.loads, lines))


@dataclass(frozen=True)
class Site:
    """Where real islands are started."""

    server: ForkServer
    project: TinyProject
    folder: Path

    def start(self, name: str, address: str, vanishes: str = "", ranks: int = 1, **flags: Any) -> Life:
        folder = self.folder / name
        folder.mkdir()
        given = {**SCHEDULE, "save_steps": SAVED_AT, "save_safetensors": "true", **flags}
        argv = [str(folder), *self.project.arguments(folder / "out", (), **given)]
        environment = {
            "YETO_DILOCO_SYNCER": address, "YETO_DILOCO_SAVE_ANCHORS": "1", "YETO_DILOCO_HEARTBEAT_S": "1",
            "PROBED_VANISHES": vanishes,
        }  # fmt: skip
        job = self.server.start(argv, ranks, entry="tests.trainers.megatron.callback_probe:main", env=environment)
        return Life(folder, ranks, job)

    def live(self, name: str, address: str, vanishes: str, ranks: int = 1, **flags: Any) -> Life:
        """A life that is killed at a moment."""
        life = self.start(name, address, vanishes, ranks, **flags)
        result = life.job.wait(JOB_S)
        assert set(result.returncodes) <= {-9, -15} and -9 in result.returncodes, result.check()
        return life


def resumed(way: str, checkpoint: Path) -> dict[str, Any]:
    return {flag: checkpoint if value == "CHECKPOINT" else value for flag, value in WAYS[way].items()}


@dataclass(frozen=True)
class Lives:
    """All lives of the module docstring."""

    site: Site
    first: Life
    again: Mapping[tuple[str, str], Life]
    other_ranks: Mapping[str, Life]
    ended: Life
    tape: list[tape_lines.TapeLine]
    other: Trial


@pytest.fixture(scope="module")
def lives(
    fork_server: ForkServer, tiny_project: TinyProject, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lives]:
    site = Site(fork_server, tiny_project, tmp_path_factory.mktemp("lives"))
    with SyncerProcess(site.folder / "run", *FAST) as syncer:
        address = syncer.address
        first = site.live("first", address, f"saved-{SAVED_AT}")
        checkpoint = first.folder / "out" / f"checkpoint-{SAVED_AT}"
        bare = site.folder / "bare" / checkpoint.name
        shutil.copytree(checkpoint, bare)
        record = json.loads((bare / RECORD_FILE).read_text())
        (bare / RECORD_FILE).write_text(json.dumps({**record, "anchors": []}))

        again: dict[tuple[str, str], Life] = {}
        for way in WAYS:
            again["kept", way] = site.live(f"kept {way}", address, "started", **resumed(way, checkpoint))
        hold = Hold.before(40)
        other = Trial(address, 40, island_id=1, target=0.5, step_s=0.05, before_step=hold, model_specs=first.specs())
        other.begin()
        wait_until(lambda: len({c.fragment for c in syncer.events(tape_lines.Commit)}) == 3, "the values move", other)
        wait_until(hold.held.is_set, "the other island holds still", other)
        for way in WAYS:
            again["shifted", way] = site.live(f"shifted {way}", address, "started", **resumed(way, checkpoint))
            again["overwritten", way] = site.live(f"overwritten {way}", address, "started", **resumed(way, bare))
        cut = {"tensor_model_parallel_size": 2, "sequence_parallel": "true", **resumed("without optimizer", checkpoint)}
        other_ranks = {"shifted": site.live("shifted by two ranks", address, "started", 2, **cut)}
        ended = site.start("ended", address, **resumed("without optimizer", checkpoint))
        wait_until(lambda: (ended.folder / "rates-0.jsonl").exists(), "it trains", other)
        hold.release()
        other.join()
        ended.job.wait(JOB_S).check()
        assert syncer.wait() == 0, syncer.text()
        yield Lives(site, first, again, other_ranks, ended, syncer.tape(), other)


def same_bits(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    assert left.keys() == right.keys()
    return all(torch.equal(left[name].view(torch.int32), right[name].view(torch.int32)) for name in left)


def shifted(life: Life, first: Life) -> dict[str, torch.Tensor]:
    """T + (theta - A); what did not change globally keeps its bits."""
    theta, old = life.values("loaded"), first.values(f"saved-{SAVED_AT}-anchors")
    new = life.values("started-anchors")
    return {name: torch.where(new[name] == old[name], t, new[name] + (t - old[name])) for name, t in theta.items()}


@pytest.mark.parametrize("way", WAYS)
def test_values_loaded_are_those_saved(lives: Lives, way: str) -> None:
    saved = lives.first.values(f"saved-{SAVED_AT}")
    if way != "with optimizer":  # only the model is loaded, and that is bf16
        saved = {name: tensor.bfloat16().float() for name, tensor in saved.items()}
    for row in ROWS:
        assert same_bits(lives.again[row, way].values("loaded"), saved)


@pytest.mark.parametrize("way", WAYS)
def test_island_that_missed_nothing_keeps_every_bit(lives: Lives, way: str) -> None:
    life = lives.again["kept", way]
    assert [facts["kept"] for facts in life.facts("started")] == [{"parameters": True, "masters": True}]
    assert same_bits(life.values("started-anchors"), lives.first.values(f"saved-{SAVED_AT}-anchors"))
    assert not same_bits(life.values("started"), life.values("started-anchors"))


@pytest.mark.parametrize("way", WAYS)
def test_island_with_its_anchors_shifts_onto_the_new_values(lives: Lives, way: str) -> None:
    life = lives.again["shifted", way]
    assert same_bits(life.values("started"), shifted(life, lives.first))
    assert not same_bits(life.values("started"), life.values("started-anchors"))
    assert [facts["rounded"] for facts in life.facts("started")] == [True]


@pytest.mark.parametrize("way", WAYS)
def test_island_without_its_anchors_is_overwritten(lives: Lives, way: str) -> None:
    life = lives.again["overwritten", way]
    assert same_bits(life.values("started"), life.values("started-anchors"))
    assert same_bits(life.values("started"), lives.again["shifted", way].values("started-anchors"))
    assert [facts["rounded"] for facts in life.facts("started")] == [True]


def test_two_ranks_shift_what_one_rank_has_saved(lives: Lives) -> None:
    life = lives.other_ranks["shifted"]
    one_rank = lives.again["shifted", "without optimizer"]
    assert same_bits(life.values("started"), one_rank.values("started"))
    assert same_bits(life.values("started"), shifted(life, lives.first))
    assert [facts["rounded"] for facts in life.facts("started")] == [True, True]


@pytest.mark.parametrize(("row", "way"), [(row, way) for row in ROWS for way in WAYS])
def test_one_line_tells_what_became_of_the_fragments(lives: Lives, row: str, way: str) -> None:
    text = lives.again[row, way].job.text()
    counts = ", ".join(f"{3 if name == row else 0} {name}" for name in ROWS)
    assert text.count(f"global values of 3 fragments: {counts}, 0 missing") == 1
    anchors = "with no anchors (its anchors were not saved)" if row == "overwritten" else "with its anchors"
    assert text.count(anchors) == 1
    fresh = "the learning rate schedule was fresh; it is at iteration 2 now"
    assert text.count(fresh) == (way != "with optimizer")


def test_resumed_island_ends_equal_to_the_other_one_with_the_schedule_of_an_uninterrupted_run(
    lives: Lives, tmp_path: Path
) -> None:
    check_tape(lives.tape)
    final = lives.ended.values(f"saved-{STEPS}")
    numbers = {spec.name: number for number, spec in enumerate(lives.other.islands[0].layout.tensors)}
    others = {name: torch.from_numpy(lives.other.now.model[numbers[name]]) for name in final}
    assert same_bits(final, others)
    record = json.loads((lives.ended.folder / "out" / f"checkpoint-{STEPS}" / RECORD_FILE).read_text())
    assert record["iteration"] == STEPS
    site = lives.site
    alone = site.project.arguments(tmp_path / "alone", (), **SCHEDULE)
    site.server.run(alone, 1).check()
    expected = {step.iteration: step.learning_rate for step in read_steps(tmp_path / "alone")}
    steps = read_steps(lives.ended.folder / "out")
    assert {step.iteration: step.learning_rate for step in steps} == {i: expected[i] for i in range(3, STEPS + 1)}
    assert lives.ended.rates().keys() == set(range(3, STEPS + 1))
