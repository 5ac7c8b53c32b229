"""Which anchors the syncer holds a push of."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats.messages import ValueName
from syncer.brain.memory import held_anchors
from syncer.brain.memory.held_anchors import HeldAnchors


def name(version: int, fragment: int = 0) -> ValueName:
    return ValueName(fragment, version, f"d{version}")


def test_an_anchor_is_held_from_gather_to_release_and_for_ever_after_a_merge() -> None:
    held = HeldAnchors()
    held.gather(1, name(0))
    assert held.holds(1, name(0)) and not held.holds(2, name(0)) and not held.holds(1, name(2))
    held.release(1, name(0))
    assert not held.holds(1, name(0)) and held.names(1) == ()
    held.gather(1, name(0))
    held.merge(1, name(0))
    held.gather(1, name(2))
    assert held.names(1) == (name(0), name(2)) and held.gathered(1) == {name(2)}
    with pytest.raises(KeyError):
        held.release(1, name(0))


def test_anchors_older_than_what_is_remembered_count_as_held() -> None:
    held = HeldAnchors()
    for version in range(10, 10 + 2 * held_anchors.MERGED_KEPT, 2):
        held.gather(1, name(version))
        held.merge(1, name(version))
    assert held.holds(1, name(3)) and not held.holds(1, name(11)) and not held.holds(1, name(99))
    assert len(held.names(1)) == held_anchors.MERGED_KEPT
    assert held.floors(1, 2) == (10, 0) and held.floors(2, 2) == ()


def test_work_done_after_a_step_is_known_by_fragment_while_it_is_held() -> None:
    held = HeldAnchors()
    held.gather(1, name(0), 20)
    assert held.outrun(1, 2, 19) == (name(0).fragment,) and held.outrun(1, 2, 20) == () == held.outrun(2, 2, 0)
    held.release(1, name(0))
    assert held.outrun(1, 2, 19) == ()
    held.gather(1, name(0), 20)
    held.merge(1, name(0))
    held.gather(1, name(2), 10)
    held.merge(1, name(2))
    assert held.reached() == ((1, name(0).fragment, 20),)
    assert HeldAnchors.of_merged(held.merged(), held.reached()).outrun(1, 2, 19) == (name(0).fragment,)
    assert held.copy().outrun(1, 2, 19) == (name(0).fragment,)
