"""What the callback makes of the events of ms-swift's real Megatron trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.forkserver.forkserver import ForkServer, RunResult
from tests.forkserver.logs import read_steps
from tests.forkserver.tiny import TinyProject

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ADDRESS = "tcp://127.0.0.1:5"
SCENARIO = "FLOW_SCENARIO"  # see flow_probe.py, which only a process with the trainer can import


class Flows:
    """Runs of the callback with an island that writes down its events."""

    def __init__(self, server: ForkServer, project: TinyProject, folder: Path) -> None:
        self.server, self.project, self.folder = server, project, folder

    def run(self, scenario: str, ranks: int, output: str = "out", **flags: object) -> RunResult:
        """Flags whose names are in capitals are environment variables."""
        given = {name: value for name, value in flags.items() if not name.isupper()}
        argv = [str(self.folder), *self.project.arguments(self.folder / output, (), **given)]
        environment = {name: str(value) for name, value in flags.items() if name.isupper()}
        environment |= {SCENARIO: scenario, "YETO_DILOCO_SYNCER": ADDRESS}
        return self.server.start(argv, ranks, entry="tests.trainers.megatron.flow_probe:main", env=environment).wait(
            120
        )

    def events(self, rank: int = 0) -> list[str]:
        return (self.folder / f"events-{rank}").read_text().splitlines()


@pytest.fixture
def flows(fork_server: ForkServer, tiny_project: TinyProject, tmp_path: Path) -> Flows:
    return Flows(fork_server, tiny_project, tmp_path)


def test_final_cut_is_waited_for_before_the_last_save(flows: Flows) -> None:
    flows.run("", 2, train_iters=3, save_steps=2).check()
    expected = [
        f"island 0 at {ADDRESS}, from step 0",
        "start",
        "step 1 trained True tokens True",
        "step 2 trained True tokens True",
        "save checkpoint-2 of step 2",
        "step 3 trained True tokens True",
        "finish 3, complete: ['checkpoint-2']",
        "save checkpoint-3 of step 3",
        "saved, complete: ['checkpoint-2', 'checkpoint-3']",
        "close",
    ]
    assert [flows.events(rank) for rank in range(2)] == [expected, expected]


def test_stop_ends_the_training_through_the_trainers_own_flow(flows: Flows) -> None:
    flows.run("stop", 1, train_iters=4).check()
    assert flows.events()[3:] == [
        "step 2 trained True tokens True",
        "finish 2, complete: []",
        "save checkpoint-2 of step 2",
        "saved, complete: ['checkpoint-2']",
        "close",
    ]


def test_asynchronous_save_is_on_disk_before_the_syncer_may_forget_the_island(flows: Flows) -> None:
    flows.run("", 1, train_iters=2, async_save="true").check()
    assert flows.events()[-3:] == ["save checkpoint-2 of step 2", "saved, complete: ['checkpoint-2']", "close"]


def test_users_mistake_on_one_rank_is_one_line_of_rank_0_and_ends_all(flows: Flows) -> None:
    result = flows.run("refuse", 2)
    assert not result.timed_out
    assert 2 in result.returncodes
    assert result.returncodes[0] in (2, -15)  # the launcher may end it as soon as rank 1 has ended
    assert "swift-diloco: error: rank 1 does not like its flags\n" in result.text(0)
    assert "Traceback" not in result.text(0) + result.text(1)


def test_error_of_the_island_closes_it_and_ends_the_job(flows: Flows) -> None:
    result = flows.run("fail", 2)
    assert not result.timed_out
    assert 1 in result.returncodes
    assert "swift-diloco: error: the syncer broke a rule\n" in result.text(0)
    assert flows.events()[-1] == "close PeerError"


def test_job_that_resumes_at_its_last_step_takes_the_final_values_and_saves_them(flows: Flows) -> None:
    flows.run("", 1, train_iters=1).check()
    checkpoint = flows.folder / "out" / "checkpoint-1"
    flows.run("", 1, train_iters=1, mcore_model=checkpoint, finetune="false").check()
    assert flows.events()[-6:] == [
        f"island 0 at {ADDRESS}, from step 1 of checkpoint-1",
        "start",
        "finish 1, complete: ['checkpoint-1']",
        "save checkpoint-1 of step 1",
        "saved, complete: ['checkpoint-1']",
        "close",
    ]


def test_ordered_saves_are_made_at_the_step_and_again_while_parked_before_the_next(flows: Flows) -> None:
    flows.run("save", 2, train_iters=3, overlap_param_gather="true", overlap_grad_reduce="true").check()
    assert flows.events() == flows.events(1)
    assert flows.events()[2:] == [
        "step 1 trained True tokens True",
        "save checkpoint-1 of step 1",
        "step 2 trained True tokens True",
        "save ordered before step 3",
        "save checkpoint-2 of step 2",
        "step 3 trained True tokens True",
        "finish 3, complete: ['checkpoint-1', 'checkpoint-2']",
        "save checkpoint-3 of step 3",
        "saved, complete: ['checkpoint-1', 'checkpoint-2', 'checkpoint-3']",
        "close",
    ]


def test_island_that_is_to_stop_alone_saves_and_does_not_wait_for_the_others(flows: Flows) -> None:
    flows.run("save and stop", 1, train_iters=4).check()
    ended = ["save checkpoint-2 of step 2", "saved, complete: ['checkpoint-2']", "close"]
    assert flows.events()[3:] == ["step 2 trained True tokens True", *ended]


def test_order_to_stop_before_a_step_makes_that_step_the_last(flows: Flows) -> None:
    flows.run("leave", 1, train_iters=5).check()
    ended = ["save checkpoint-3 of step 3", "saved, complete: ['checkpoint-3']", "close"]
    assert flows.events()[3:] == ["step 2 trained True tokens True", "step 3 trained True tokens True", *ended]


def test_run_that_is_over_at_the_start_is_only_saved(flows: Flows) -> None:
    flows.run("ended", 1, train_iters=4).check()
    ended = ["finish 0, complete: []", "save checkpoint-0 of step 0", "saved, complete: ['checkpoint-0']", "close"]
    assert flows.events()[1:] == ["start", *ended]


def test_checkpoints_are_rotated_and_the_record_goes_beside_the_newest(flows: Flows) -> None:
    flows.run("", 1, train_iters=3, save_steps=1, save_total_limit=2).check()
    saves = [event for event in flows.events() if event.startswith("save ")]
    assert saves == [f"save checkpoint-{step} of step {step}" for step in (1, 2, 3)]
    assert sorted(path.name for path in (flows.folder / "out").glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]


def test_schedule_goes_on_where_it_was_unless_it_is_switched_off(flows: Flows) -> None:
    schedule: dict[str, Any] = {
        "train_iters": 6,
        "lr_warmup_fraction": 0.4,
        "lr_decay_style": "linear",
        "save_steps": 2,
    }
    flows.run("", 1, **schedule).check()
    resumed: dict[str, Any] = {**schedule, "mcore_model": flows.folder / "out" / "checkpoint-2", "finetune": "false"}
    flows.run("", 1, "restored", **resumed).check()
    flows.run("", 1, "fresh", **resumed, no_load_optim="true").check()
    flows.run("", 1, "off", **resumed, no_load_optim="true", YETO_DILOCO_LR_RESUME="off").check()
    rates = {
        name: [step.learning_rate for step in read_steps(flows.folder / name)]
        for name in ("out", "restored", "fresh", "off")
    }
    assert rates["out"][2:] != rates["out"][:4]
    assert rates["restored"] == rates["fresh"] == rates["out"][2:]
    assert rates["off"] == rates["out"][:4]


def test_adapter_training_is_refused_by_name(flows: Flows) -> None:
    result = flows.run("", 1, tuner_type="lora")
    assert result.returncodes == (2,)
    assert "--tuner_type is not supported on islands yet: found lora, expected full" in result.text(0)
