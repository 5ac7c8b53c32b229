"""The phase of the run: derived, one after another as the table says."""

from __future__ import annotations

import pytest

from syncer.brain.memory.phase import FOLLOWS, Phase
from syncer.events import StopRequested
from tests.syncer.desk import Desk, finished

STEP = {Phase.TRAINING, Phase.FINISHING}
CARRY = STEP | {Phase.PAUSED}


def test_every_phase_has_its_place_in_the_table_and_leads_to_the_end() -> None:
    assert set(FOLLOWS) == set(Phase)
    reached = {Phase.JOINING}
    while more := {after for phase in reached for after in FOLLOWS[phase]} - reached:
        reached |= more
    assert reached == set(Phase)
    assert all(Phase.ENDED in FOLLOWS[phase] for phase in Phase if phase is not Phase.ENDED)
    assert not FOLLOWS[Phase.ENDED] and all(phase not in FOLLOWS[phase] for phase in Phase)


def phases_of_a_run() -> dict[Phase, Desk]:
    """A run in each phase."""
    joining, training = Desk(expected_islands=2), Desk()
    init, paused = Desk(expected_islands=2), Desk(min_islands=2)
    finishing, stopping, ended = Desk(), Desk(), Desk()
    for desk in (joining, init):
        desk.join(0)
    init.join(1)
    paused.ready(2)
    paused.leave(1)
    for desk in (training, finishing, stopping, ended):
        desk.ready(1)
    finishing.done(0)
    for desk in (stopping, ended):
        desk.offer(0, 1)
        desk.take(StopRequested())
    ended.take(StopRequested())
    return {
        Phase.JOINING: joining,
        Phase.INIT: init,
        Phase.TRAINING: training,
        Phase.PAUSED: paused,
        Phase.FINISHING: finishing,
        Phase.FINAL: finished(1),
        Phase.STOPPING: stopping,
        Phase.ENDED: ended,
    }


def test_the_phase_follows_from_what_is_remembered() -> None:
    assert {phase: desk.brain._state.phase for phase, desk in phases_of_a_run().items()} == {p: p for p in Phase}


def test_status_and_rules_say_the_same_phase() -> None:
    for phase, desk in phases_of_a_run().items():
        assert desk.brain.status().phase == phase.value


def test_a_phase_that_cannot_follow_is_found() -> None:
    desk = finished(1)
    desk.brain._phases = (Phase.FINAL, Phase.TRAINING)
    with pytest.raises(AssertionError, match="training cannot follow final"):
        desk.brain.validate()


@pytest.mark.parametrize(("phase", "steps", "carries"), [(p, p in STEP, p in CARRY) for p in Phase])
def test_rounds_are_launched_and_late_pushes_kept_in_the_phases_that_have_more_rounds(
    phase: Phase, steps: bool, carries: bool
) -> None:
    assert (phase.steps, phase.carries) == (steps, carries)
