"""A story as text: a dump, which a program reads and a test replays, and lines for people.

A dump is one JSON object, one line of it per event. It is read with suspicion: wrong format, size or depth is refused
before anything is made of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from swift_diloco.core.story.frozen import Freezer, Json, StoryError
from swift_diloco.core.story.recorder import MOMENTS, Draws, Moment, Story

FORMAT = 1
"""Version of the dump's format. A reader refuses every other."""

DUMP_BYTES_MAX = 256 * 1024 * 1024
"""Largest dump that is read: a thousand islands with a hundred fragments take a third of it."""

LIVING_BYTES_MAX = 16 * 1024 * 1024
"""Longest dump of a living brain: it travels in one message, of which this is a quarter."""

LIVING_STATE_MAX = 10_000
"""Size of the largest state in it: freezing holds the brain up, for about a second at this size."""

LINE_CHARACTERS_MAX = 600
"""Longer lines for people are cut."""

STAND_INS: dict[type, str] = {Draws: "draws"}


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One event of a dump, frozen."""

    now: float
    event: Any
    drawn: list[str] = []
    """What chance the brain drew."""
    effects: list[Any] | None = None
    """None: of an event so long ago that only the replay needs it, or of the last one, when the brain raised."""


class Raised(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the brain raised at its last event."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        return cls(type(error).__name__, str(error))


class Dump(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A story to keep."""

    story: str
    """Whose."""
    format: int
    raised: Raised | None
    classes: dict[str, str]
    """Module by name of class."""
    state: Any
    """Before the first event; None: left out, so that nothing can be replayed."""
    events: list[Told]


def dump_of(story: Story, *, with_state: bool = True) -> Dump:
    """The story so far. Without state, only the events that are shown."""
    freezer = Freezer(stand_ins=STAND_INS)
    state = freezer.of(story.state) if with_state else None
    moments = story.moments() if with_state else story.moments()[-MOMENTS:]
    told = [_told(freezer, moment) for moment in moments]
    secrets = freezer.secrets  # all of them only now: a token is drawn before it is seen
    events = [msgspec.structs.replace(each, drawn=[secrets.get(text, text) for text in each.drawn]) for each in told]
    raised = Raised.of(story.error) if story.error is not None else None
    return Dump(story.name, FORMAT, raised, freezer.classes, state, events)


def _told(freezer: Freezer, moment: Moment) -> Told:
    freezer.forget()
    event = freezer.of(moment.event)
    effects = None if moment.effects is None else [freezer.brief(effect) for effect in moment.effects]
    return Told(moment.now, event, list(moment.drawn), effects)


# -- as text -----------------------------------------------------------------------------------------------------------


def written(dump: Dump, bytes_max: int = DUMP_BYTES_MAX) -> str:
    """The dump as JSON; the state and then the oldest events are left out where it would be too long."""
    head = {"story": dump.story, "format": dump.format, "raised": msgspec.to_builtins(dump.raised)}
    parts = [f'"{name}": {json.dumps(value)}' for name, value in {**head, "classes": dump.classes}.items()]
    events = [json.dumps(msgspec.to_builtins(each)) for each in dump.events]
    state = json.dumps(dump.state)
    room = bytes_max - sum(map(len, parts)) - 1024
    if len(state) + sum(len(line) + 2 for line in events) > room:
        state, events = "null", events[-MOMENTS:]
        while events and sum(len(line) + 2 for line in events) > room:
            del events[0]
    return "{" + ",\n".join([*parts, f'"state": {state}', '"events": [\n' + ",\n".join(events)]) + "\n]}\n"


def told_living(story: Story) -> str:
    """The story of a brain that lives on, as JSON: the newest of it, and the state where that is soon done."""
    return written(dump_of(story, with_state=story.size <= LIVING_STATE_MAX), LIVING_BYTES_MAX)


def parsed(text: str | bytes) -> Dump:
    """The dump that was written. Raises `StoryError`."""
    if len(text) > DUMP_BYTES_MAX:
        raise StoryError(f"a dump of {len(text)} bytes; at most {DUMP_BYTES_MAX} are read")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoryError(f"not a dump of a story: {error}") from None
    version = found.get("format") if isinstance(found, dict) else None
    if version != FORMAT:
        raise StoryError(
            f"not a dump of format {FORMAT}, but {str(version)[:20]}; read it with the version that wrote it"
        )
    try:
        return msgspec.convert(found, Dump)
    except (msgspec.ValidationError, RecursionError) as error:
        raise StoryError(f"not a dump of a story: {error}") from None


def lines(dump: Dump, newest: int = MOMENTS) -> list[str]:
    """For people: one line per event, its effects indented below it, the newest last."""
    shown = [each for each in dump.events if each.effects is not None or each is dump.events[-1]][-newest:]
    told = [f"the last {len(shown)} events of {dump.story} (time in s, event, its effects):"]
    for each in shown:
        told.append(_cut(f"{each.now:12.3f} {text_of(each.event)}"))
        told += [_cut(f"{'':14}{text_of(effect)}") for effect in each.effects or ()]
    if dump.raised is not None:
        told.append(f"{'':14}raised {dump.raised.kind}: {dump.raised.text}")
    return told


def text_of(frozen: Json) -> str:
    """A frozen value, as Python would show it."""
    if isinstance(frozen, list):
        return f"({_joined(frozen)}{',' if len(frozen) == 1 else ''})"
    if not isinstance(frozen, dict):
        return repr(frozen)
    ((name, inside), *_) = ((name, inside) for name, inside in frozen.items() if name != "id")
    match name, inside:
        case "list" | "set" | "frozenset", list():
            return f"[{_joined(inside)}]"
        case "dict" | "counter", list():
            return "{" + ", ".join(f"{text_of(key)}: {text_of(value)}" for key, value in inside) + "}"
        case "long", _:
            return f"<{inside} elements>"
        case _, dict():
            return f"{name}({', '.join(f'{field}={text_of(value)}' for field, value in inside.items())})"
        case _, str() if name[:1].isupper():
            return f"{name}.{inside}"
    return str(inside)


def _joined(values: Iterable[Json]) -> str:
    return ", ".join(map(text_of, values))


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS_MAX else line[: LINE_CHARACTERS_MAX - 1] + "…"
