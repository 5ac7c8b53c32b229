"""The coordinator's state in words and as plain data."""

from __future__ import annotations

from syncer.events import (
    Log,
)
from tests.syncer.desk import Desk


def test_a_wait_for_more_than_four_islands_is_told_once() -> None:
    desk = Desk(fragments=1, expected_islands=8, quorum=8)
    desk.ready(8)
    for island in range(5):
        desk.push(island, 1)
    talk = [e.text for e in desk.effects if isinstance(e, Log) and "outer step 1" in e.text]
    assert talk == [
        "waiting for more than 4 islands to answer outer step 1 (fragment 0)",
        "waiting for islands 4, 5, 6, 7 to answer outer step 1 (fragment 0)",
        "waiting for islands 5, 6, 7 to answer outer step 1 (fragment 0)",
    ]


def test_who_is_waited_for_is_told_once_per_change() -> None:
    desk = Desk()
    desk.ready(2)
    talk = [e.text for e in desk.effects if isinstance(e, Log) and e.text.startswith("waiting for")]
    assert talk == [
        "waiting for islands to join (0 of 1 are here)",
        "waiting for the initial values of island 0",
        "waiting for islands 0, 1 to answer outer step 1 (fragment 0)",
    ]
