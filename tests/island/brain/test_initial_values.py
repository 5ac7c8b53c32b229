"""initial_values.py: a fresh island provides at once, one with global values only if nobody brings the state back."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats.messages import InitWanted
from swift_diloco.island.brain.initial_values import InitialValues
from swift_diloco.island.brain.stages import Profile
from swift_diloco.island.events import Log, ProvideInit

WANTED = InitWanted("s", "g", ("u0", "u1"))
PROVIDE = [ProvideInit(("u0", "u1")), Log("info", "providing the initial values")]


def test_a_fresh_island_provides_at_once() -> None:
    values = InitialValues(Profile(0, "life"))
    assert values.ask(WANTED, 0.0, grown=False) == PROVIDE
    assert values.provided and values.provide_if_due(1e9) == []


@pytest.mark.parametrize(
    ("probe_s", "waits_s", "due_s"), [(1800.0, 3600.0, 1800.0), (1800.0, 60.0, 60.0), (1800.0, 0.0, 1800.0)]
)
def test_an_island_with_global_values_provides_when_the_syncer_asked_for_long_enough(
    probe_s: float, waits_s: float, due_s: float
) -> None:
    values = InitialValues(Profile(0, "life", init_probe_s=probe_s, initial_cut_timeout_s=waits_s))
    (told,) = values.ask(WANTED, 5.0, grown=True)
    assert isinstance(told, Log) and told.level == "error" and told.text.endswith(f"still asks in {due_s:g} s")
    answers = [values.provide_if_due(now) for now in (5.0, 5.0 + due_s - 1.0, 5.0 + due_s, 1e9)]
    assert answers == [[], [], PROVIDE, []] and values.provided


def test_what_was_asked_in_a_generation_ends_with_it() -> None:
    values = InitialValues(Profile(0, "life"))
    values.ask(WANTED, 0.0, grown=True)
    values.void()
    assert values.provide_if_due(1e9) == []
    values.ask(WANTED, 0.0, grown=False)
    values.void()
    assert not values.provided
