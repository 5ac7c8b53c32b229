"""Tells a brain its events and remembers the story: the newest events and effects, and from where to replay them.

A replay needs the state at its beginning. So the story is written in *pages*: each begins with a copy of the state and
holds the events since; the last two are kept. A page is the longer the more its copy cost, so that copies cost an event
the same share whatever the size of the state. Events are kept encoded: bytes take a tenth of the memory of objects, and
no time of the garbage collector.

Knows no clock, file or chance; the chance that a brain is given is a `Draws`, and is remembered with the events.

Invariants: at least the `MOMENTS` newest events can be replayed (fewer only where pages end early because their
messages take `PAGE_BYTES_MAX`); effects are kept of the `MOMENTS` newest events, and of those that drew.

Memory: two copies of the state (names and counts), and the events of two pages, each at most `PAGE_BYTES_MAX`
and one message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from swift_diloco.core.story.copies import ATOMS, Copier

MOMENTS = 200
"""Events that are shown with their effects."""

EVENTS_PER_VALUE = 2
"""Events of a page per value of the state that was copied for it: copies cost a fiftieth of what the brain does."""

PAGE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of encoded events after which a page ends: ordinary ones have a hundred, so a page is a hundred thousand."""

encode = msgspec.msgpack.Encoder().encode


class Handles(Protocol):
    """A brain."""

    def handle(self, event: Any, *, now: float) -> list[Any]:
        """What to do about an event."""
        ...


class Draws:
    """Chance for a brain: hands on what `source` gives, and remembers it until a story takes it."""

    def __init__(self, source: Callable[[], str]) -> None:
        self._source = source
        self.drawn: list[str] = []

    def __call__(self) -> str:
        self.drawn.append(self._source())
        return self.drawn[-1]

    def take(self) -> list[str]:
        """What was drawn since the last time."""
        drawn, self.drawn = self.drawn, []
        return drawn


@dataclass
class Moment:
    """One event and what came of it."""

    now: float
    event: Any
    drawn: Sequence[str] = ()
    effects: Sequence[Any] | None = None
    """None: not remembered, or the brain raised."""


@dataclass
class Page:
    """The state before some events, and these."""

    state: Any
    size: int
    """Values in the state."""
    events: list[tuple[float, type, Any]] = field(default_factory=list)
    """When, of which class, and encoded; as it is where it cannot be encoded (a text that is no UTF-8)."""
    draws: dict[int, tuple[list[str], Sequence[Any]]] = field(default_factory=dict)
    """Of events that drew, by number: what, and the effects."""

    @property
    def room(self) -> int:
        """How many events it is for."""
        return max(MOMENTS, self.size * EVENTS_PER_VALUE)


class Story:
    """Stands before a brain: `handle` is the brain's, and is remembered."""

    def __init__(self, name: str, brain: Handles) -> None:
        self.name = name
        """Whose story it is, as a file may be called: `syncer`, `island-3`."""
        self.error: Exception | None = None
        """What the brain raised."""
        self._brain = brain
        self._handle = brain.handle
        self._shared: set[type] = set(ATOMS)
        self._draws: Draws | None = None
        self._page = Page(None, 0)
        self._earlier: Page | None = None
        self._room = 0
        self._bytes = 0
        self._effects: deque[Sequence[Any]] = deque(maxlen=MOMENTS)

    def handle(self, event: Any, *, now: float) -> list[Any]:
        """Have the brain take one event; what it wants done."""
        if len(self._page.events) >= self._room or self._bytes > PAGE_BYTES_MAX:
            self._turn()
        try:
            encoded = encode(event)
            self._bytes += len(encoded)
        except ValueError:
            encoded = event
        self._page.events.append((now, type(event), encoded))
        try:
            effects = self._handle(event, now=now)
        except Exception as error:
            self.error = error
            self._keep_draws(())
            raise
        self._effects.append(effects)
        if self._draws is not None and self._draws.drawn:
            self._keep_draws(effects)
        return effects

    @property
    def size(self) -> int:
        """Values in the state that a replay begins with."""
        return (self._earlier or self._page).size

    @property
    def state(self) -> Any:
        """The brain before the first of `moments`."""
        return (self._earlier or self._page).state

    def moments(self) -> list[Moment]:
        """What can be replayed, oldest first."""
        pages = [page for page in (self._earlier, self._page) if page is not None]
        found: list[Moment] = []
        for page in pages:
            for number, (now, kind, encoded) in enumerate(page.events):
                event = msgspec.msgpack.decode(encoded, type=kind) if type(encoded) is bytes else encoded
                found.append(Moment(now, event, *page.draws.get(number, ())))
        ended = found[:-1] if self.error is not None else found
        for moment, effects in zip(reversed(ended), reversed(self._effects), strict=False):
            moment.effects = effects
        if self.error is not None:
            found[-1].effects = None
        return found

    def _turn(self) -> None:
        """Begin a page."""
        copier = Copier(self._shared)
        page = Page(copier.of(self._brain), copier.size)
        self._draws = next((each for each in copier.foreign if isinstance(each, Draws)), self._draws)
        if self._draws is not None:
            self._draws.take()  # before the first event, as a brain that is restored may
        self._earlier = self._page if self._page.events else None
        self._page, self._room, self._bytes = page, page.room, 0

    def _keep_draws(self, effects: Sequence[Any]) -> None:
        if self._draws is not None:
            self._page.draws[len(self._page.events) - 1] = (self._draws.take(), effects)
