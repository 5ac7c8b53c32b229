"""A real syncer process and fake islands over loopback, with values that can be computed by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swift_diloco.core.errors import UserError
from swift_diloco.core.formats import tape_lines
from tests.e2e.harness import FAST, SyncerProcess, check_tape, in_background, run_islands, run_side_by_side
from tests.fakes.island import FakeIsland, Job
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.net


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_one_island_with_outer_lr_1_is_plain_training(tmp_path: Path, ranks: int) -> None:
    with SyncerProcess(tmp_path, *FAST, "--align", "carry") as syncer:
        (island,) = run_islands([Job(syncer.address, ranks=ranks, steps=12, step_s=0.02)])
        assert syncer.wait() == 0, syncer.text()
        plain = 1.0 - 0.5**12
        for name, tensor in island.tensors.items():
            assert (tensor == plain).all(), name
        check_tape(syncer.tape())


def test_two_islands_with_different_cuts_end_with_the_same_bits(tmp_path: Path) -> None:
    with SyncerProcess(tmp_path, *FAST, "--min-islands", "2") as syncer:
        address = syncer.address
        jobs = [
            Job(address, island=0, ranks=1, steps=15, target=1.0, step_s=0.02),
            Job(address, island=1, ranks=2, steps=15, target=3.0, start=9.0, step_s=0.02),
        ]
        first, second = run_islands(jobs)
        assert syncer.wait() == 0, syncer.text()
        assert first.digest == second.digest
        for name, tensor in first.tensors.items():
            assert 1.0 < tensor.min() <= tensor.max() < 3.0, (name, tensor)
        check_tape(syncer.tape(), min_islands=2)
        (final,) = syncer.events(tape_lines.Final)
        commits = syncer.events(tape_lines.Commit)
        assert final.versions == tuple(max(line.version for line in commits if line.fragment == f) for f in range(3))


def test_every_step_and_token_is_pushed_once_when_progress_is_carried(tmp_path: Path) -> None:
    with SyncerProcess(tmp_path, *FAST, "--align", "carry") as syncer:
        run_islands([Job(syncer.address, steps=11, tokens=7, step_s=0.02)])
        assert syncer.wait() == 0, syncer.text()
        for fragment in range(3):
            parts = [
                part
                for line in syncer.events(tape_lines.Commit)
                if line.fragment == fragment and not line.void
                for part in line.contributions
            ]
            assert sum(part.steps for part in parts) == 11
            assert sum(part.tokens for part in parts) == 77


def test_the_initial_values_are_island_0s_and_reach_the_others_before_they_train(tmp_path: Path) -> None:
    with SyncerProcess(tmp_path, *FAST, "--expected-islands", "2") as syncer:
        address = syncer.address
        still = {"steps": 1, "lr": 0.0}
        first, second = run_islands(
            [
                Job(address, island=0, start=5.0, **still),  # type: ignore[arg-type]
                Job(address, island=1, start=-1.0, ranks=2, **still),  # type: ignore[arg-type]
            ]
        )
        assert syncer.wait() == 0, syncer.text()
        for island in (first, second):
            assert all((tensor == 5.0).all() for tensor in island.tensors.values())


def test_an_island_with_another_model_is_refused_with_the_first_differing_tensor(tmp_path: Path) -> None:
    with SyncerProcess(tmp_path, *FAST, "--expected-islands", "2") as syncer:
        address = syncer.address
        first = FakeIsland(Job(address, island=0, initial_cut_timeout_s=2.0))
        second = FakeIsland(Job(address, island=1, elements=4096, step_s=0.1))
        thread = in_background([first])
        # The first to join decides whose model is the other one.
        wait_until(lambda: "(1 of 2 are here)" in syncer.text(), "the first has joined")
        run_side_by_side([second])
        thread.join(30.0)
        (waited,), (refused,) = first.errors, second.errors
        assert "the syncer waits for islands to join (1 of 2 are here)" in str(waited)
        assert isinstance(refused, UserError)
        assert "expected tensor 'decoder.layers.0.input_layernorm.weight', found 'decoder.layers.0.weight'" in str(
            refused
        )


def test_a_second_living_island_with_the_same_id_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    with SyncerProcess(tmp_path, *FAST, "--expected-islands", "2") as syncer:
        address = syncer.address
        first = FakeIsland(Job(address, island=0, initial_cut_timeout_s=2.0))
        second = FakeIsland(Job(address, island=0, instance="other", connect_timeout_s=1.0))
        run_side_by_side([first, second])
        texts = [str(error) for error in (*first.errors, *second.errors)]
        assert any(f"pid {os.getpid()}" in text and "refused" in text for text in texts), texts


def test_a_syncer_that_is_not_there_is_an_error_after_connect_timeout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no syncer answered at tcp://127.0.0.1:9 within connect_timeout_s=1"):
        run_islands([Job("tcp://127.0.0.1:9", connect_timeout_s=1.0)])
