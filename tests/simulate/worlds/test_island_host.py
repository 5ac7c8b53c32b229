"""An island of a simulated world: how it performs effects on numbers, and the faults that wait in it."""

from __future__ import annotations

import math

import pytest

from swift_diloco.core.formats.messages import Leave, ValueName
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.island import events
from swift_diloco.island.events import Align
from swift_diloco.simulate.worlds.island_host import Life
from swift_diloco.simulate.worlds.island_parts import Local, Staging
from swift_diloco.simulate.worlds.plans import IslandPlan, Plan
from swift_diloco.simulate.worlds.run import Run
from swift_diloco.simulate.worlds.truth import Captured, Learned, Unit

OLD, NEW = (0, "life", 1), (0, "life", 2)
NAME = ValueName(0, 3, repr(10.0))


@pytest.fixture
def life() -> Life:
    """An island with one fragment: 2 was its anchor, it pushed at 4 and is at 5 now; 10 has come."""
    run = Run(Plan(1, SyncerSettings(fragments=1), (IslandPlan(1.0, ranks=2, slow_rank=3.0),), 9, 0.1, 1.0))
    run.world.run(lambda: bool(run.lives), 100.0)
    life = run.lives[0]
    life.locals = [Local(5.0, 2.0, frozenset({OLD, NEW}), 4.0, frozenset({NEW}))]
    life.staging[NAME] = Staging(set(), 10.0)
    return life


BOTH, NONE = frozenset({OLD, NEW}), frozenset[Unit]()


ALIGNED: list[tuple[Align, float, frozenset[Unit], float]] = [
    (Align.OVERWRITE, 10.0, NONE, 10.0),
    (Align.ANCHOR, 2.0, NONE, 2.0),
    (Align.BLEND, 8.75, NONE, 10.0),
    (Align.KEEP, 5.0, BOTH, 10.0),
    (Align.SHIFT, 13.0, BOTH, 10.0),
    (Align.CARRY, 11.0, frozenset({NEW}), 10.0),
]
"""Align, and what is left: the value, the learning in it, the anchor."""


@pytest.mark.parametrize(("align", "value", "units", "anchor"), ALIGNED)
def test_each_way_to_align_leaves_its_value_and_the_learning_that_is_in_it(
    life: Life, align: Align, value: float, units: frozenset[Unit], anchor: float
) -> None:
    life._perform(events.Install(NAME, align, 0.25))
    (local,) = life.locals
    assert (local.value, local.units, local.anchor) == (value, units, anchor)
    assert life.syncer.history.installed == [(0, NAME, anchor)]


def test_every_way_to_align_is_in_the_table() -> None:
    assert {row[0] for row in ALIGNED} == set(Align)


def test_value_that_is_installed_before_it_is_there_is_a_bug(life: Life) -> None:
    life.staging[NAME].value = None
    with pytest.raises(AssertionError, match="is installed before it is there"):
        life._perform(events.Install(NAME, Align.OVERWRITE, 0.0))


def test_anchor_that_the_brain_names_must_be_the_one_that_is_here(life: Life) -> None:
    life._perform(events.NameAnchor(ValueName(0, 1, repr(2.0))))
    with pytest.raises(AssertionError, match="is not the anchor here"):
        life._perform(events.NameAnchor(NAME))


def test_install_that_fails_on_a_rank_ends_all_of_them_and_the_syncer_is_told(life: Life) -> None:
    life.armed.install, life.session.generation = 1, "g"
    life._perform(events.Install(NAME, Align.OVERWRITE, 0.0))
    assert (life.alive, life.crashed_at_install, life.armed.install) == (False, True, 0)
    assert life.world.fired == {"install": 1} and life.locals[0].value == 5.0
    last = life.control.sent[-1]
    assert isinstance(last, Leave) and last.reason == "a rank could not install"


def test_delta_is_measured_from_the_anchor_and_one_that_is_poisoned_is_not_finite(life: Life) -> None:
    capture = events.Capture("p", 0, 2)
    life._perform(capture)
    assert life.captures["p"] == Learned(3.0, BOTH)
    assert (life.locals[0].at_capture, life.locals[0].since_capture) == (5.0, NONE)
    assert life.syncer.history.captured == [Captured("p", 2, BOTH)]
    life.armed.poison = 1
    life._perform(capture)
    assert math.isnan(life.captures["p"].value) and life.world.fired == {"poison": 1}
    life._perform(events.ForgetUpload("p", False))
    assert life.captures == {}


def test_damage_is_spent_once(life: Life) -> None:
    life.armed.damage = 1
    assert [life.spend_damage(), life.spend_damage()] == [True, False] and life.world.fired == {"damage": 1}


def test_only_the_last_rank_is_slow(life: Life) -> None:
    life.world.random.seed(1)
    fast = life.push_s(0)
    life.world.random.seed(1)
    assert life.push_s(1) == pytest.approx(3.0 * fast)


def test_effect_that_is_not_known_raises(life: Life) -> None:
    with pytest.raises(AssertionError, match="the simulated island does not know nonsense"):
        life._perform("nonsense")  # type: ignore[arg-type]
