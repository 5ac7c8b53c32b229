"""Settings that an operator changed while the run went on."""

from __future__ import annotations

from swift_diloco.core.formats.operator_messages import AdminCommand
from syncer.brain.memory.overrides import apply_overrides
from tests.syncer.desk import Desk, order


def test_changes_are_remembered_for_the_next_life() -> None:
    desk = Desk()
    order(desk, AdminCommand.SET, changes=(("quorum", "3"), ("min_islands", "2")))
    kept = desk.brain._state.overrides
    assert kept == {"quorum": 3, "min_islands": 2}
    again = Desk()
    apply_overrides(again.brain._state, kept)
    assert (again.brain._state.settings.quorum, again.brain._state.settings.min_islands) == (3, 2)
