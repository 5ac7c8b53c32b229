"""The bench of the brain, in a process of its own."""

from __future__ import annotations

import pytest

from swift_diloco.core.errors import InternalError
from swift_diloco.tools.bench import brain
from swift_diloco.tools.bench.lines import short


@pytest.mark.net
def test_brain_is_measured_in_a_process_of_its_own_and_its_events_are_counted() -> None:
    (figure,) = brain.run(brain.BrainOptions(islands=3, fragments=2, rounds=4))
    assert (figure.name, figure.ceiling, figure.target) == ("brain_events", brain.EVENTS_PER_S, 1.0)
    assert figure.ratio == pytest.approx(short(figure.value / brain.EVENTS_PER_S), rel=1e-3)
    slowest_ms = float(str(figure.details.pop("slowest_event_ms")))
    assert figure.details == {"islands": 3, "fragments": 2, "events": 4 * (3 * 4 + 1)}
    assert slowest_ms + 0.01 >= 1000 / figure.value, "the slowest event is no faster than the mean"


@pytest.mark.net
def test_process_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(InternalError, match=r"syncer.bench 1 0 1` ended with code 1: (.|\n)*Error"):
        brain.run(brain.BrainOptions(islands=1, fragments=0, rounds=1))
