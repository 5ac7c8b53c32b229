"""A running island whose syncer comes back with the same, a newer, an older or no state: the redial table, bit for bit.

The island is held before a step while the syncer is replaced, and then takes steps whose updates are skipped, so that
what the redial alone made of its values can be seen. The proxy gives every syncer the same address.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.tools.audit.auditing import audit
from tests.e2e.harness import FAST, SyncerProcess, whole_tape
from tests.fakes.proxy import DOWN, Proxy
from tests.fakes.trial import Hold, Snapshot, Trial
from tests.fakes.waiting import wait_until

pytestmark = pytest.mark.net

ELEMENTS = 1 << 18
"""1 MiB in 3 fragments."""
HEADERS_BYTES_MAX = 64 * 1024
STEPS = 4000
"""More than the test lets it take."""
FRAGMENTS = (0, 1, 2)


class Runs:
    """Successive syncers of one run: the same checkpoint and tape, another process and port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def syncer(self, *flags: str) -> SyncerProcess:
        self.count += 1
        kept = ("--checkpoint-path", str(self.folder / "saved"), "--tape", str(self.folder / "tape.jsonl"))
        given = ("--pipeline", "3", "--shutdown-timeout-s", "2", "--align", "overwrite")
        return SyncerProcess(self.folder / f"run-{self.count}", *FAST, *kept, *given, *flags)

    def check(self) -> None:
        report = audit(self.folder / "tape.jsonl")
        assert report.ok, report.violations


@pytest.fixture
def runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Runs:
    caplog.set_level(logging.INFO, logger="swift_diloco")
    return Runs(tmp_path)


def committed(runs: Runs) -> set[int]:
    """Fragments that the other island has moved."""
    return {line.fragment for line in whole_tape(runs.folder / "tape.jsonl") if isinstance(line, tape_lines.Commit)}


def clean(trial: Trial) -> Callable[[int], bool]:
    """Every fragment was installed at least once more, and no delta is on its way."""

    def when(step: int) -> bool:
        anchors = trial.session.anchors
        return all(a.name is not None and a.name.version > 0 and not a.spent and a.steps > 0 for a in anchors)

    return when


def rejoined(trial: Trial, hold: Hold, caplog: pytest.LogCaptureFixture, counts: str) -> Snapshot:
    """What the island has once its redial is over; it is held again."""
    trial.lr = 0.0
    text, known = f"global values of 3 fragments: {counts}, 0 missing", len(caplog.records)
    hold.release()
    wait_until(lambda: any(text in record.getMessage() for record in caplog.records[known:]), text, trial)
    hold.again()
    return trial.now


def counters(trial: Trial) -> list[tuple[int, int]]:
    return [(anchor.steps, anchor.tokens) for anchor in trial.session.anchors]


def same(left: Snapshot, right: Snapshot) -> bool:
    return all(
        np.array_equal(a, b) for a, b in zip([*left.model, *left.anchors], [*right.model, *right.anchors], strict=True)
    )


def end(trial: Trial, hold: Hold, syncer: SyncerProcess) -> None:
    trial.lr, trial.steps = 0.3, trial.steps_done + 8
    hold.release()
    trial.join()
    assert syncer.wait() == 0, syncer.text()


def test_syncer_with_the_same_state_is_rejoined_without_a_download(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    with runs.syncer() as old, Proxy(old.address) as proxy:
        hold = Hold()
        trial = Trial(proxy.address, STEPS, elements=ELEMENTS, before_step=hold)
        hold.when = clean(trial)
        trial.begin()
        wait_until(hold.held.is_set, "the island is held", trial)
        before, counted = trial.now, counters(trial)
        old.terminate()
        assert old.wait() == 0
        with runs.syncer("--resume") as new:
            proxy.lead_to(new.address)
            passed = proxy.passed[DOWN]
            assert same(rejoined(trial, hold, caplog, "3 kept, 0 shifted, 0 overwritten"), before)
            assert proxy.passed[DOWN] - passed < HEADERS_BYTES_MAX
            assert counters(trial) == counted
            end(trial, hold, new)
    runs.check()


def test_syncer_with_a_newer_state_is_shifted_onto(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    with runs.syncer("--expected-islands", "2", "--quorum", "1") as old, Proxy(old.address) as proxy:
        hold, others = Hold(lambda step: step == 3), Hold(lambda step: step == 1)
        trial = Trial(proxy.address, STEPS, elements=ELEMENTS, before_step=hold).begin()
        other = Trial(proxy.address, 400, island_id=1, target=3.0, elements=ELEMENTS, before_step=others).begin()
        wait_until(lambda: hold.held.is_set() and others.held.is_set(), "both are held", trial, other)
        before, counted = trial.now, counters(trial)
        others.release()
        wait_until(lambda: committed(runs) == {*FRAGMENTS}, "the other island moves all fragments", other)
        others.again()
        old.terminate()
        assert old.wait() == 0
        with runs.syncer("--resume") as new:
            proxy.lead_to(new.address)
            after = rejoined(trial, hold, caplog, "0 kept, 3 shifted, 0 overwritten")
            for t, a, now, new_value in zip(before.model, before.anchors, after.model, after.anchors, strict=True):
                assert not np.array_equal(a, new_value)
                assert now.tobytes() == (new_value + (t - a)).tobytes()
            assert counters(trial) == counted
            other.steps = other.steps_done + 8
            others.release()
            end(trial, hold, new)
            other.join()
    runs.check()


def test_syncer_of_an_older_checkpoint_is_accepted_and_shifted_back_onto(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    with runs.syncer("--checkpoint-on-start", "--checkpoint-every", "1000") as old, Proxy(old.address) as proxy:
        hold = Hold()
        trial = Trial(proxy.address, STEPS, elements=ELEMENTS, before_step=hold)
        hold.when = clean(trial)
        trial.begin()
        wait_until(hold.held.is_set, "the island is held", trial)
        before, counted = trial.now, counters(trial)
        old.process.kill()
        old.process.wait()
        with runs.syncer("--resume") as new:
            proxy.lead_to(new.address)
            after = rejoined(trial, hold, caplog, "0 kept, 3 shifted, 0 overwritten")
            assert [anchor.name.version for anchor in trial.session.anchors] == [0, 0, 0]
            assert all((tensor == trial.start).all() for tensor in after.anchors)
            for t, a, now, back in zip(before.model, before.anchors, after.model, after.anchors, strict=True):
                assert now.tobytes() == (back + (t - a)).tobytes()
            assert counters(trial) == counted
            end(trial, hold, new)
    runs.check()


def test_syncer_that_forgot_its_state_is_told_so_and_gets_it_after_the_probe(
    tmp_path: Path, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    with runs.syncer() as old, Proxy(old.address) as proxy:
        hold = Hold()
        settings = {"init_probe_s": 1.0}
        trial = Trial(proxy.address, STEPS, elements=ELEMENTS, before_step=hold, settings=settings)
        hold.when = clean(trial)
        trial.begin()
        wait_until(hold.held.is_set, "the island is held", trial)
        before, counted, run = trial.now, counters(trial), trial.session.holdings.run
        old.process.kill()
        old.process.wait()
        with SyncerProcess(tmp_path / "empty", *FAST) as new:
            proxy.lead_to(new.address)
            assert same(rejoined(trial, hold, caplog, "3 kept, 0 shifted, 0 overwritten"), before)
            assert [anchor.name.version for anchor in trial.session.anchors] == [0, 0, 0]
            assert trial.session.holdings.run != run
            assert counters(trial) == counted
            end(trial, hold, new)
    (loud,) = [r for r in caplog.records if "was it started without --resume?" in r.getMessage()]
    assert loud.levelno == logging.ERROR
