"""The pause below min_islands: who is told, and when it ends."""

from __future__ import annotations

from swift_diloco.core.formats.messages import (
    Paused,
    PauseOver,
)
from syncer.events import (
    Send,
)
from tests.syncer.desk import SESSION, Desk, control, messages


def test_a_paused_run_resumes_by_itself_when_the_island_returns() -> None:
    desk = Desk(min_islands=2, reconnect_grace_s=0.0)
    desk.ready(2)
    desk.push(0, 1)
    desk.gone(1)
    effects = desk.join(1, life=2)
    assert Send(control(0), PauseOver(SESSION, "k1")) in effects
    desk.push(1, 1, life=2)
    assert [m.island for m in desk.merges()[0].contributions] == [0, 1]


def test_an_island_that_joins_a_paused_run_is_told() -> None:
    desk = Desk(min_islands=3, expected_islands=3, reconnect_grace_s=0.0)
    desk.ready(3)
    desk.gone(1)
    desk.gone(2)
    assert messages(desk.join(1, life=2))[-3:][0] == Paused(SESSION, "k8", "2 of at least 3 islands are here", 1)
