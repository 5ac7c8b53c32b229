"""Replays a dump: the same state, events and chance must come to the same effects and the same end.

So a failure in the field becomes a test: `assert isinstance(replay(read_story(path)), AssertionError)` holds as long as
the fault is there; once it is gone, `replay` says that the brain does something else.
"""

from __future__ import annotations

from collections.abc import Iterator

from swift_diloco.core.story.dump import STAND_INS, Dump, Raised, Told, text_of
from swift_diloco.core.story.frozen import Freezer, StoryError, Thawer
from swift_diloco.core.story.recorder import Draws, Handles


class Diverged(AssertionError):
    """The brain does something else than the dump tells."""


class _Fed:
    """Gives the chance of a dump."""

    def __init__(self) -> None:
        self.left: Iterator[str] = iter(())

    def __call__(self) -> str:
        text = next(self.left, None)
        if text is None:
            raise Diverged("the brain draws more often than it did")
        return text


def replay(dump: Dump) -> Exception | None:
    """Replay a dump to its end: what the brain raised, which is what the dump tells; None when it did not raise.

    Raises `Diverged` where the brain does something else, `StoryError` when the dump cannot be replayed.
    """
    fed = _Fed()
    thawer = Thawer(dump.classes, {name: Draws(fed) for name in STAND_INS.values()})
    brain: Handles = thawer.of(dump.state)
    if not callable(getattr(brain, "handle", None)):
        raise StoryError(f"the dump of {dump.story} has no state to begin with, only events to read")
    for number, told in enumerate(dump.events):
        fed.left = iter(told.drawn)
        event = thawer.of(told.event)
        try:
            effects = brain.handle(event, now=told.now)
        except (Diverged, StoryError):
            raise
        except Exception as error:
            return _checked(error, dump, number)
        if told.effects is not None:
            _compare(effects, dump, told)
    if dump.raised is not None:
        raise Diverged(f"the brain raised {dump.raised.kind}: {dump.raised.text}; now it does not")
    return None


def _checked(error: Exception, dump: Dump, number: int) -> Exception:
    """What was raised, if it is what the dump tells."""
    if dump.raised != Raised.of(error) or number != len(dump.events) - 1:
        raise Diverged(
            f"event {number + 1} of {len(dump.events)}, {text_of(dump.events[number].event)}, raises "
            f"{type(error).__name__}: {error}"
        ) from error
    return error


def _compare(effects: list[object], dump: Dump, told: Told) -> None:
    freezer = Freezer(dict(dump.classes), redact=False)
    found = [freezer.brief(effect) for effect in effects]
    if found != told.effects:
        differing = next(
            (pair for pair in zip(found, told.effects or (), strict=False) if pair[0] != pair[1]), (found, told.effects)
        )
        raise Diverged(
            f"at {told.now:g} s, {text_of(told.event)} comes to {text_of(differing[0])}; it was {text_of(differing[1])}"
        )
