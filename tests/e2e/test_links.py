"""Links between an island and a real syncer that break, stall and fall silent: training goes on, nothing counts twice.

A proxy in user space does the harm; every test asserts that it was done.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from swift_diloco.core.formats import tape_lines
from tests.e2e.harness import FAST, SyncerProcess, check_tape, times_said
from tests.e2e.test_island_restarts import check_no_anchor_merged_twice
from tests.fakes.proxy import DOWN, UP, Proxy
from tests.fakes.trial import Hold, Trial
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.net

ELEMENTS = 1 << 20
"""4 MiB in 8 tensors and 3 fragments: large against every header, so a cut at a byte is in the middle of a transfer."""
MIDDLE = 600_000
"""Bytes after the beginning of a transfer of 1 MiB and more."""
HEADERS_BYTES_MAX = 64 * 1024
"""Most that joining again may move, and a hundredth of the model."""


def contributed(tape: list[tape_lines.TapeLine], island: int, fragment: int) -> int:
    """Steps of an island merged into a fragment."""
    parts = [
        part
        for line in tape
        if isinstance(line, tape_lines.Commit) and not line.void and line.fragment == fragment
        for part in line.contributions
        if part.island == island
    ]
    return sum(part.steps for part in parts)


STEPS = 14
CUTS = {
    # before which step, in which direction
    "push": (3, UP),
    "fetch": (3, DOWN),
    "final cut": (STEPS, DOWN),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("what", CUTS)
def test_link_cut_in_the_middle_of_a_transfer_loses_and_doubles_nothing(tmp_path: Path, what: str, ranks: int) -> None:
    step, direction = CUTS[what]
    with SyncerProcess(tmp_path, *FAST, "--align", "carry") as syncer, Proxy(syncer.address) as proxy:

        def harm(next_step: int) -> None:
            if next_step == step:
                proxy.cut_after(MIDDLE, direction)

        trial = Trial(proxy.address, STEPS, ranks=ranks, elements=ELEMENTS, before_step=harm, step_s=0.02)
        trial.begin().join()
        assert syncer.wait() == 0, syncer.text()
        assert proxy.cuts == 1
        tape = syncer.tape()
        check_tape(tape)
        check_no_anchor_merged_twice(tape)
        assert [contributed(tape, 0, fragment) for fragment in range(3)] == [STEPS] * 3
        # Outer learning rate 1 and one island: the global model is its own, so it trained as if alone.
        alone = trial.target + (trial.start - trial.target) * (1 - trial.lr) ** STEPS
        assert all(abs(tensor - alone).max() < 1e-6 for tensor in trial.now.model)


def test_link_cut_in_the_middle_of_the_initial_values_has_them_sent_again_whole(tmp_path: Path) -> None:
    with SyncerProcess(tmp_path, *FAST) as syncer, Proxy(syncer.address) as proxy:
        proxy.cut_after(2 * MIDDLE, UP)
        trial = Trial(proxy.address, 4, elements=ELEMENTS, start=5.0, lr=0.0)
        trial.begin().join()
        assert syncer.wait() == 0, syncer.text()
        assert proxy.cuts == 1
        assert all((tensor == 5.0).all() for tensor in trial.now.model)
        assert proxy.passed[UP] > 4 * ELEMENTS + 2 * MIDDLE


@pytest.mark.parametrize("ranks", [1, 2])
def test_redial_that_missed_nothing_moves_headers_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ranks: int
) -> None:
    caplog.set_level(logging.INFO, logger="swift_diloco")
    flags = ("--sync-every-steps", "1000", "--fragments", "3", "--reconnect-grace-s", "0.5")
    with SyncerProcess(tmp_path, *flags) as syncer, Proxy(syncer.address) as proxy:
        hold, enough = Hold.before(3), threading.Event()
        trial = Trial(proxy.address, 4000, ranks=ranks, elements=ELEMENTS, before_step=hold)
        trial.vanish_when = lambda island, step: agreed(enough, trial, step)
        trial.begin()
        wait_until(hold.held.is_set, "the island trains", trial)
        before, generation, fetched = dict(proxy.passed), trial.session.generation, trial.moved_bytes[1]
        proxy.cut()
        hold.release()
        summary = "global values of 3 fragments: 3 kept, 0 shifted, 0 overwritten, 0 missing"
        wait_until(lambda: times_said(caplog, summary) == 2, "it has joined again", trial)
        assert trial.session.generation != generation
        moved = {direction: proxy.passed[direction] - before[direction] for direction in before}
        assert trial.moved_bytes[1] == fetched
        assert 0 < moved[DOWN] < HEADERS_BYTES_MAX
        assert 0 < moved[UP] < HEADERS_BYTES_MAX
        enough.set()
        trial.join()


def agreed(enough: threading.Event, trial: Trial, step: int) -> bool:
    """Whether to vanish at this step, the same on all ranks: rank 0 decides it one step ahead."""
    if enough.is_set() and not trial.ends_at:
        trial.ends_at = step + 2
    return 0 < trial.ends_at <= step


def test_silent_syncer_is_given_up_after_the_lease_and_training_never_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="swift_diloco")
    flags = (*FAST, "--island-lease-s", "2", "--align", "carry")
    with SyncerProcess(tmp_path, *flags) as syncer, Proxy(syncer.address) as proxy:
        slow = {"step_s": 0.05, "settings": {"heartbeat_s": 0.3}}
        enough = threading.Event()
        trial = Trial(proxy.address, 4000, vanish_when=lambda island, step: enough.is_set(), **slow).begin()  # type: ignore[arg-type]
        wait_until(lambda: len(syncer.events(tape_lines.Commit)) >= 3, "rounds are taken", trial)
        proxy.freeze()
        frozen_at = trial.steps_done
        wait_until(lambda: times_said(caplog, "nothing heard from the syncer for 2 s") == 1, "it is given up", trial)
        assert trial.steps_done > frozen_at
        commits = len(syncer.events(tape_lines.Commit))
        proxy.thaw()
        wait_until(lambda: len(syncer.events(tape_lines.Commit)) >= commits + 3, "rounds are taken again", trial)
        enough.set()
        trial.join()
        check_tape(syncer.tape())
        check_no_anchor_merged_twice(syncer.tape())


def test_slow_and_late_link_only_makes_it_slower(tmp_path: Path) -> None:
    with SyncerProcess(tmp_path, *FAST, "--align", "carry") as syncer, Proxy(syncer.address) as proxy:
        proxy.delay(0.002)
        proxy.limit(20e6)
        trial = Trial(proxy.address, 8, elements=ELEMENTS, ranks=2).begin().join()
        assert syncer.wait() == 0, syncer.text()
        assert trial.steps_done == 8
        assert [contributed(syncer.tape(), 0, fragment) for fragment in range(3)] == [8] * 3
