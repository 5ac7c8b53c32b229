"""The quorum hold and the lease with fake islands against a real syncer."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from swift_diloco.core.formats import tape_lines
from tests.e2e.harness import FAST, SyncerProcess, check_tape, times_said
from tests.fakes.island import FakeIsland, Job
from tests.fakes.proxy import DOWN, Proxy
from tests.fakes.trial import Hold, Trial
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.net

PAIR = (*FAST, "--expected-islands", "2", "--min-islands", "2", "--quorum", "2")
LEASE = (*FAST, "--island-lease-s", "2")
STALL_S = 4.0
"""An island that does not train for so long outlives or loses a lease of 2 s."""


# -- pause -------------------------------------------------------------------------------------------------------------


def test_island_alone_at_the_start_waits_for_the_others_and_says_so(tmp_path: Path) -> None:
    with SyncerProcess(tmp_path, *PAIR) as syncer:
        first = Trial(syncer.address, 6).begin()
        wait_until(lambda: "waits for islands to join (1 of 2 are here)" in first.waits_for, "it says so", first)
        assert first.steps_done == 0
        second = Trial(syncer.address, 6, island_id=1, target=3.0).begin()
        first.join()
        second.join()
        assert syncer.wait() == 0, syncer.text()
        check_tape(syncer.tape(), min_islands=2)


@pytest.mark.parametrize("ranks", [1, 2])
def test_below_min_islands_all_ranks_idle_together_and_resume_by_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ranks: int
) -> None:
    caplog.set_level(logging.INFO, logger="swift_diloco")
    with SyncerProcess(tmp_path, *PAIR) as syncer:
        gone = threading.Event()
        stays = Trial(syncer.address, 4000, ranks=ranks).begin()
        goes = Trial(
            syncer.address, 4000, island_id=1, target=3.0, vanish_when=lambda island, step: gone.is_set()
        ).begin()
        wait_until(lambda: len(syncer.events(tape_lines.Commit)) >= 3, "rounds are taken", stays, goes)
        gone.set()
        goes.join()
        wait_until(lambda: stays.session.paused is not None, "the run is paused", stays)
        wait_until(lambda: "1 more island" in stays.waits_for, "it says for whom", stays)
        parked_at, commits = stays.steps_done, len(syncer.events(tape_lines.Commit))
        time.sleep(1.5)  # longer than parked ranks may sleep between two exchanges
        assert stays.steps_done <= parked_at + 1
        assert stays.runs
        stays.steps = parked_at + 40  # all its ranks are parked, so all will see it
        back = Trial(syncer.address, 40, island_id=1, target=3.0).begin()
        back.join()
        stays.join()
        assert stays.steps_done == parked_at + 40
        assert syncer.wait() == 0, syncer.text()
        assert stays.digest == back.digest
        check_tape(syncer.tape(), min_islands=2)
        assert len(syncer.events(tape_lines.Commit)) > commits
    assert times_said(caplog, "island 0: paused by the syncer: ") >= 1
    assert times_said(caplog, "island 0: the pause is over") >= 1


@pytest.mark.parametrize("dies", [False, True])
def test_pause_ends_when_the_syncer_that_ordered_it_is_unheard_for_a_lease(tmp_path: Path, dies: bool) -> None:
    flags = (*PAIR, "--island-lease-s", "2")
    with SyncerProcess(tmp_path, *flags) as syncer, Proxy(syncer.address) as proxy:
        gone, enough = threading.Event(), threading.Event()
        goes = Trial(syncer.address, 4000, island_id=1, vanish_when=lambda island, step: gone.is_set()).begin()
        stays = Trial(proxy.address, 4000, vanish_when=lambda island, step: enough.is_set()).begin()
        wait_until(lambda: len(syncer.events(tape_lines.Commit)) >= 1, "rounds are taken", stays, goes)
        gone.set()
        goes.join()
        wait_until(lambda: stays.session.paused is not None, "the run is paused", stays)
        parked_at = stays.steps_done
        if dies:
            syncer.process.kill()
        else:
            proxy.freeze()
        wait_until(lambda: stays.steps_done > parked_at + 2, "it trains on", stays)
        enough.set()
        stays.join()


# -- heartbeat and lease -----------------------------------------------------------------------------------------------


def stalled(tmp_path: Path, caplog: pytest.LogCaptureFixture, **settings: Any) -> tuple[str, str]:
    """The generations before and after an island stalls once, at a step in the middle of a run that ends well."""
    caplog.set_level(logging.INFO, logger="swift_diloco")
    with SyncerProcess(tmp_path, *LEASE) as syncer:
        generations: list[str] = []

        def stall(step: int) -> None:
            if step == 5:
                generations.append(trial.session.generation)
                time.sleep(STALL_S)  # the fault itself

        trial = Trial(syncer.address, 200, step_s=0.02, before_step=stall, settings=settings)
        trial.begin().join()
        assert syncer.wait() == 0, syncer.text()
        check_tape(syncer.tape())
        (before,) = generations
        return before, trial.session.generation


def test_stalled_island_keeps_its_place_while_its_heartbeats_flow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = stalled(tmp_path, caplog, heartbeat_s=0.5)
    assert before == after
    assert times_said(caplog, "joined the syncer as island 0") == 1


def test_stalled_island_without_heartbeats_loses_its_place_and_joins_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = stalled(tmp_path, caplog, heartbeat_s=0)
    assert before != after
    assert times_said(caplog, "joined the syncer as island 0") == 2


def test_hung_training_loop_loses_its_place_at_the_stall_limit_and_joins_again_when_it_moves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = stalled(tmp_path, caplog, heartbeat_s=0.5, heartbeat_stall_s=1.0)
    assert before != after
    assert times_said(caplog, "joined the syncer as island 0") == 2


def test_heartbeats_are_on_time_while_the_bulk_link_is_full(tmp_path: Path) -> None:
    """A slow network and a fetch that takes longer than the lease: the island stays a member."""
    with SyncerProcess(tmp_path, *LEASE) as syncer, Proxy(syncer.address) as proxy:
        hold = Hold.before(1)
        trial = Trial(proxy.address, 4, elements=1 << 20, before_step=hold, settings={"heartbeat_s": 0.3}).begin()
        wait_until(hold.held.is_set, "it has the initial values", trial)
        generation = trial.session.generation
        proxy.limit(1.2e6)  # each way: 4 MiB take more than 3 s, a lease is 2 s
        hold.release()
        trial.join()
        assert trial.session.generation == generation
        assert proxy.passed[DOWN] > 4 << 20


def test_island_that_joins_after_the_final_cut_stops_at_its_first_boundary_whatever_gates_its_trainer_has(
    tmp_path: Path,
) -> None:
    """A trainer without the hold before a step takes one step, and is told to stop after it."""
    with SyncerProcess(tmp_path, *FAST, "--final-linger-s", "20", "--expected-islands", "2") as syncer:
        first = Trial(syncer.address, 6, vanish_before="saved").begin()
        gone = Trial(syncer.address, 400, island_id=1, vanish_when=lambda island, step: step == 2).begin()
        gone.join()
        first.join()
        late = FakeIsland(Job(syncer.address, island=1, steps=50, step_s=0.01))
        late.run()
        assert late.steps_done == 1
        assert late.islands[0].session.final is not None
