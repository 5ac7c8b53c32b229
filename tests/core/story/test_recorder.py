"""What a story remembers, and how little it costs, with a brain that only counts."""

from __future__ import annotations

from typing import Any

import pytest

from swift_diloco.core.story import recorder
from swift_diloco.core.story.recorder import EVENTS_PER_VALUE, MOMENTS, Draws, Moment, Story
from syncer.brain.memory.deadlines import Deadlines


class Brain(Deadlines):
    """A brain of the syncer's class, so that it is copied: sets a deadline per event and draws when told to."""

    __module__ = Deadlines.__module__

    def __init__(self, tokens: Draws | None = None) -> None:
        super().__init__()
        self.tokens = tokens
        self.ballast: list[tuple[int, list[int]]] = []

    def handle(self, event: Any, *, now: float) -> list[Any]:
        assert event != "bad", "a bad event"
        self.set(("event", str(event)), now)
        return [event, self.tokens()] if event == "draw" and self.tokens is not None else [event]


def told(count: int, brain: Brain | None = None) -> Story:
    story = Story("test", brain if brain is not None else Brain())
    for number in range(count):
        assert story.handle(number, now=float(number)) == [number]
    return story


def test_effects_of_the_newest_events_are_kept_and_all_moments_follow_each_other() -> None:
    moments = told(MOMENTS + 50).moments()
    assert [moment.event for moment in moments] == list(range(MOMENTS + 50))
    assert [moment.effects for moment in moments] == [None] * 50 + [[n] for n in range(50, MOMENTS + 50)]


@pytest.mark.parametrize("count", [1, MOMENTS, MOMENTS + 1, 1234, 5 * MOMENTS])
def test_the_state_is_the_one_before_the_first_moment(count: int) -> None:
    story = told(count)
    moments = story.moments()
    assert len(story.state) == count - len(moments)
    assert min(count, MOMENTS) <= len(moments) <= 2 * max(MOMENTS, count * EVENTS_PER_VALUE)
    assert moments[-1] == Moment(float(count - 1), count - 1, (), [count - 1])


def test_pages_grow_with_the_state_so_that_an_event_costs_the_same() -> None:
    brain = Brain()
    brain.ballast = [(n, [n]) for n in range(1000)]
    story = told(1000, brain)
    assert story.size >= 1000 and len(story.state) == 0, "a page ends before its copy has paid"


def test_a_brain_that_raises_is_remembered_with_its_event() -> None:
    story = told(3)
    with pytest.raises(AssertionError, match="a bad event"):
        story.handle("bad", now=3.0)
    assert isinstance(story.error, AssertionError)
    assert story.moments()[-2:] == [Moment(2.0, 2, (), [2]), Moment(3.0, "bad", (), None)]


def test_what_was_drawn_stays_with_its_event_and_its_effects() -> None:
    numbers = iter(range(100))
    draws = Draws(lambda: f"token-{next(numbers)}")
    draws()  # before the first event: of no event
    story = Story("test", Brain(draws))
    for event in ("draw", 1, "draw", *range(2 * MOMENTS)):
        story.handle(event, now=0.0)
    drawn = [(moment.event, moment.drawn, moment.effects) for moment in story.moments() if moment.drawn]
    assert drawn == [("draw", ["token-1"], ["draw", "token-1"]), ("draw", ["token-2"], ["draw", "token-2"])]


def test_long_messages_end_a_page_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PAGE_BYTES_MAX", 1000)
    story = told(100)
    texts = [str(number) * 300 for number in range(100, 110)]
    for text in texts:
        story.handle(text, now=100.0)
    moments = story.moments()
    assert len(moments) <= 4 and len(story.state) == 110 - len(moments) and moments[-1].effects == [texts[-1]]


def test_an_event_that_is_no_utf_8_is_kept_as_it_is() -> None:
    story = told(1)
    story.handle("no \udcff text", now=1.0)
    assert [moment.event for moment in story.moments()] == [0, "no \udcff text"]
