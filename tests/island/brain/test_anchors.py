"""Counters and spent flags of one fragment."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats.messages import ValueName
from swift_diloco.island.brain.anchors import Anchor

V1, V2 = ValueName(0, 1, "a"), ValueName(0, 2, "b")


def pushed() -> Anchor:
    anchor = Anchor()
    anchor.installed(V1)
    anchor.count(5)
    anchor.offered("p")
    return anchor


def test_nothing_is_counted_before_the_first_install() -> None:
    anchor = Anchor()
    anchor.count(5)
    assert (anchor.steps, anchor.tokens) == (0, 0)


def test_an_install_starts_the_counting_again_and_frees_the_anchor() -> None:
    anchor = pushed()
    anchor.installed(V2)
    assert anchor == Anchor(name=V2)


def test_a_rebase_keeps_the_counters_and_frees_the_anchor() -> None:
    anchor = pushed()
    anchor.rebased(V2)
    assert anchor == Anchor(name=V2, steps=1, tokens=5)


def test_a_second_push_from_a_spent_anchor_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="second push q"):
        pushed().offered("q")


def test_an_answer_to_another_push_changes_nothing() -> None:
    anchor = pushed()
    anchor.answered("other", spent=False)
    assert anchor.spent and not anchor.settled


@pytest.mark.parametrize("held", [True, False])
def test_a_welcome_settles_a_push_of_unknown_fate(held: bool) -> None:
    anchor = pushed()
    anchor.settle(held)
    assert anchor.settled and anchor.spent is held
    anchor.validate()
