"""Every checker catches the bug it is for: a brain, a host or a disk is spoilt, and the checker must object."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.messages import Contract, ValueName
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.island.brain.anchors import Anchor
from swift_diloco.island.brain.holdings import Holdings
from swift_diloco.island.events import Align, Install
from swift_diloco.simulate.worlds import checkers
from swift_diloco.simulate.worlds.checkers import Checker, Rules, Violation
from swift_diloco.simulate.worlds.disk import Disk
from swift_diloco.simulate.worlds.plans import Fault, FaultKind, IslandPlan, Plan
from swift_diloco.simulate.worlds.run import Run
from swift_diloco.simulate.worlds.syncer_host import SyncerHost
from syncer.brain.coordinator import Coordinator
from syncer.brain.memory.held_anchors import HeldAnchors
from syncer.brain.rules.finish import Finish
from syncer.events import DropUpload, Effect, Event, WriteTape

SETTINGS = SyncerSettings(
    expected_islands=3,
    min_islands=2,
    quorum=2,
    sync_every_steps=3,
    fragments=2,
    grace_cap_s=0.0,
    upload_grace_s=0.0,
    island_lease_s=20.0,
    reconnect_grace_s=1.0,
    late_carry=False,
    checkpoint_path="disk",
    checkpoint_on_start=True,
    checkpoint_every=2,
    background_checkpoint=True,
)
ISLANDS = (IslandPlan(1.0), IslandPlan(1.3, ranks=2), IslandPlan(2.9, slow_rank=3.0))
CUTS = tuple(Fault(8.0 + 1.7 * i, FaultKind.CUT, island=i % 3, seconds=0.1) for i in range(15))


def world(*faults: Fault, seed: int = 1) -> Run:
    """Three islands that differ, and a world that runs whatever its brains claim of themselves."""
    run = Run(Plan(seed, SETTINGS, ISLANDS, 30, 0.1, 1.0, faults=faults), make=_make)
    run.world.checked = False
    return run


Change = Callable[[Effect], list[Effect]]
_change: list[Change] = []


class Spoilt(Coordinator):
    """The real brain, its effects changed on their way out."""

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        effects = super().handle(event, now=now)
        for change in _change:
            effects = [changed for effect in effects for changed in change(effect)]
        return effects


def _make(settings: SyncerSettings, session: str, tokens: Callable[[], str]) -> Coordinator:
    return Spoilt(settings, session=session, tokens=tokens)


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Change every effect of the syncer's brain."""
    monkeypatch.setitem(globals(), "_change", [])
    return lambda change: _change.append(change)


def objects(checker: Checker, run: Run) -> str:
    """What a checker has to say about a world that has run its course."""
    run.world.run(lambda: run.syncer.exit is not None, 600.0)
    with pytest.raises(Violation) as caught:
        checker(run.history, Rules(SETTINGS.fragments, SETTINGS.min_islands))
    return str(caught.value)


def commit_lines(change: Callable[[tape_lines.Commit], tape_lines.Commit | None]) -> Change:
    """Change the tape's commit lines; None leaves one out."""

    def changed(effect: Effect) -> list[Effect]:
        if not isinstance(effect, WriteTape) or not isinstance(effect.line, tape_lines.Commit):
            return [effect]
        line = change(effect.line)
        return [] if line is None else [WriteTape(line)]

    return changed


def test_the_same_worlds_without_a_bug_pass() -> None:
    for faults in ((), CUTS, (Fault(20.0, FaultKind.CRASH, seconds=5.0),)):
        run = world(*faults)
        run.finish()
        assert len(checkers.merges(run.history)) > 10


def test_a_commit_that_is_left_out_is_caught(spoil: Callable[[Change], None]) -> None:
    spoil(commit_lines(lambda line: None if line.t == 3 else line))
    assert "[1, 2, 4" in objects(checkers.commits_are_in_order, world())


def test_a_wrong_version_is_caught(spoil: Callable[[Change], None]) -> None:
    spoil(commit_lines(lambda line: replace(line, version=line.version + (line.t == 4))))
    assert objects(checkers.versions_are_outer_steps, world()) == "outer step 4 made version 5"


def test_a_step_below_min_islands_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("syncer.brain.memory.state.quorum_of", lambda quorum, min_islands, present: 1)
    assert "had only [" in objects(checkers.no_step_below_min_islands, world())


def test_floats_out_of_order_are_caught(spoil: Callable[[Change], None]) -> None:
    spoil(commit_lines(lambda line: replace(line, contributions=line.contributions[::-1])))
    assert "added (island, in time) [(" in objects(checkers.floats_are_added_in_island_order, world())


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A syncer that forgets whose deltas it has: an island that joins again sends them once more."""
    monkeypatch.setattr(HeldAnchors, "holds", lambda self, island, anchor: False)
    monkeypatch.setattr(HeldAnchors, "names", lambda self, island: ())
    monkeypatch.setattr(HeldAnchors, "release", lambda self, island, anchor: None)


@pytest.mark.usefixtures("forgetful")
def test_learning_that_is_merged_twice_is_caught() -> None:
    assert "by outer steps" in objects(checkers.no_unit_is_merged_twice, world(*CUTS))


def test_an_anchor_that_is_merged_twice_is_caught(spoil: Callable[[Change], None]) -> None:
    def always_0(line: tape_lines.Commit) -> tape_lines.Commit:
        return replace(line, contributions=tuple(replace(part, base_version=0) for part in line.contributions))

    spoil(commit_lines(always_0))
    assert "was merged by" in objects(checkers.no_anchor_is_merged_twice, world())


def test_a_push_with_two_fates_is_caught(spoil: Callable[[Change], None]) -> None:
    def also_dropped(effect: Effect) -> list[Effect]:
        if not isinstance(effect, WriteTape) or not isinstance(effect.line, tape_lines.Commit) or effect.line.t != 3:
            return [effect]
        push = effect.line.contributions[0].push
        return [effect, WriteTape(tape_lines.Dropped(island=0, push=push, t=3, fragment=0, reason="why"))]

    spoil(also_dropped)
    assert "was merged, then dropped" in objects(checkers.every_push_has_one_fate, world())


def test_a_counter_that_survives_an_install_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(self: Anchor, name: ValueName) -> None:
        self.name = name
        self._free()

    monkeypatch.setattr(Anchor, "installed", installed)
    monkeypatch.setattr(Anchor, "carried", installed)
    assert "steps, holds" in objects(checkers.deltas_hold_what_is_told, world())


def test_a_fetch_of_wrong_bytes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SyncerHost.fetch

    def wrong(
        self: SyncerHost, name: ValueName, place: tuple[str, int], left: float, told: Callable[[float | None], None]
    ) -> None:
        right(self, name, place, left, lambda value: told(None if value is None else value + (name.version == 2)))

    monkeypatch.setattr(SyncerHost, "fetch", wrong)
    assert "which is" in objects(checkers.one_value_per_name, world())


def test_an_upload_that_is_never_freed_is_caught(spoil: Callable[[Change], None]) -> None:
    spoil(lambda effect: [] if isinstance(effect, DropUpload) else [effect])
    poisoned = (Fault(float(at), FaultKind.POISON, island=at % 3) for at in range(5, 30, 2))
    clogged = (Fault(float(at), FaultKind.CLOG, island=2, seconds=4.0) for at in range(5, 30, 5))
    faults = sorted((*poisoned, *clogged), key=lambda fault: fault.at_s)
    assert "never freed" in objects(checkers.handles_balance, world(*faults))


def test_a_checkpoint_that_is_told_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Disk._written

    def too_early(self: Disk, *args: Any) -> None:
        before = self.newest
        right(self, *args)
        if before is not None and self.newest is not before and self.history.durable > 1:
            self.newest = before  # the manifest was never synced

    monkeypatch.setattr(Disk, "_written", too_early)
    text = objects(checkers.durable_commits_survive, world(Fault(30.0, FaultKind.CRASH, seconds=5.0)))
    assert "was durable" in text


def test_a_run_that_hangs_after_healing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Finish, "consider", lambda self: None)
    monkeypatch.setattr("swift_diloco.simulate.worlds.run.HEALED_LIMIT_S", 200.0)
    run = world(Fault(12.0, FaultKind.KILL, island=0, seconds=3.0))
    with pytest.raises(Violation, match=r"no end by 215 s"):
        run.finish()


def test_an_island_that_ends_off_the_cut_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Holdings.install

    def keeps_progress(self: Holdings, name: ValueName, contract: Contract) -> Install:
        effect = right(self, name, contract)
        return effect if name.version == 0 else Install(name, Align.SHIFT)

    monkeypatch.setattr(Holdings, "install", keeps_progress)
    monkeypatch.setattr(Holdings, "left_to_write", lambda self, values: [])
    run = world()
    run.world.run(lambda: run.syncer.exit is not None, 600.0)
    with pytest.raises(Violation, match="ends with"):
        run.check_end()


def test_every_checker_has_its_bug_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    missing = [each.__name__ for each in checkers.CHECKERS if f"objects(checkers.{each.__name__}" not in source]
    assert missing == []
