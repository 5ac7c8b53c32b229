"""events.py: what a boundary installs comes before all else, and deeds come before words."""

from __future__ import annotations

from typing import get_args

import pytest

from swift_diloco.core.formats.messages import ValueName
from swift_diloco.island.events import (
    Align,
    Capture,
    Deed,
    Effect,
    Install,
    Log,
    SaveNow,
    TrainingEffect,
    Word,
    installs_of,
    sorted_out,
)

FIRST, SECOND = (Install(ValueName(fragment, 1, "d"), Align.OVERWRITE) for fragment in (0, 1))
SAVE = SaveNow("why")


def test_installs_are_those_that_come_before_all_else() -> None:
    assert installs_of([FIRST, SECOND, SAVE]) == [FIRST, SECOND]
    assert installs_of([SAVE]) == installs_of([]) == []


def test_an_install_behind_another_effect_is_an_error() -> None:
    with pytest.raises(AssertionError, match="something comes before an install"):
        sorted_out([SAVE, FIRST])
    with pytest.raises(AssertionError, match="something comes before an install"):
        installs_of([FIRST, SAVE, SECOND])


def test_deeds_and_words_are_told_apart_and_keep_their_order() -> None:
    capture, first, second = Capture("p", 0, 3), Log("info", "one"), Log("info", "two")
    assert sorted_out([FIRST, first, capture, SAVE, second]) == ([FIRST, capture], [first, second], [SAVE])


def test_every_effect_is_a_deed_a_word_or_the_trainings() -> None:
    kinds = [set(get_args(union)) for union in (Deed, Word, TrainingEffect)]
    assert sum(map(len, kinds)) == len(set().union(*kinds)) and set().union(*kinds) == set(get_args(Effect))


def test_an_effect_that_no_shell_knows_is_named() -> None:
    with pytest.raises(AssertionError, match="no shell knows the effect no effect at all"):
        sorted_out(["no effect at all"])  # type: ignore[list-item]
