"""events.py: what a boundary installs comes before all else, and a shell is told where it does not."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats.messages import ValueName
from swift_diloco.island.events import Align, Install, SaveNow, installs_of

FIRST, SECOND = (Install(ValueName(fragment, 1, "d"), Align.OVERWRITE) for fragment in (0, 1))
SAVE = SaveNow("why")


def test_installs_are_those_that_come_before_all_else() -> None:
    assert installs_of([FIRST, SECOND, SAVE]) == [FIRST, SECOND]
    assert installs_of([SAVE]) == installs_of([]) == []


def test_an_install_behind_another_effect_is_an_error() -> None:
    with pytest.raises(AssertionError, match="something comes before an install"):
        installs_of([SAVE, FIRST])
    with pytest.raises(AssertionError, match="something comes before an install"):
        installs_of([FIRST, SAVE, SECOND])
