"""Stories of real brains in simulated worlds: dumps replay to the same effects and the same end, or say where not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.core.story import dump as dumps
from swift_diloco.core.story import recorder
from swift_diloco.core.story.dump import Raised, dump_of, lines, parsed, written
from swift_diloco.core.story.frozen import StoryError
from swift_diloco.core.story.recorder import MOMENTS, Story
from swift_diloco.core.story.replay import Diverged, replay
from swift_diloco.island.brain.holdings import Holdings
from swift_diloco.simulate.worlds.plans import Fault, FaultKind, IslandPlan, Plan
from swift_diloco.simulate.worlds.run import Run
from syncer.brain.memory.round import Round

SETTINGS = SyncerSettings(expected_islands=3, min_islands=2, quorum=2, sync_every_steps=3, fragments=4)
CUTS = (Fault(30.0, FaultKind.CUT, 1), Fault(55.0, FaultKind.KILL, 2, seconds=2.0))
PLAN = Plan(7, SETTINGS, (IslandPlan(0.5), IslandPlan(0.7), IslandPlan(0.6, ranks=2)), 150, 0.05, 0.5, faults=CUTS)


def planted(patch: pytest.MonkeyPatch, owner: type, name: str, holds: Callable[..., bool]) -> None:
    """A brain asserts what does not always hold."""
    real: Callable[..., Any] = getattr(owner, name)

    def spoilt(self: Any, *args: Any) -> Any:
        if not holds(self, *args):
            raise AssertionError(f"planted in {name}")
        return real(self, *args)

    patch.setattr(owner, name, spoilt)


def stories_of(run: Run) -> list[Story]:
    return [run.syncer.story, *(life.story for _, life in sorted(run.lives.items()))]


@pytest.mark.parametrize(
    ("name", "owner", "method", "holds"),
    [
        ("syncer", Round, "finish", lambda self, *_: self.t < 70),
        ("island-0", Holdings, "published", lambda self, name, _: name.version < 70),
    ],
    ids=["syncer", "island"],
)
def test_an_assertion_after_a_thousand_events_is_met_again_with_the_same_effects(
    monkeypatch: pytest.MonkeyPatch, name: str, owner: type, method: str, holds: Callable[..., bool]
) -> None:
    monkeypatch.setattr(recorder, "EVENTS_PER_VALUE", 0)  # pages as short as they may be
    run = Run(PLAN)
    with monkeypatch.context() as patch:
        planted(patch, owner, method, holds)
        with pytest.raises(AssertionError, match="planted") as caught:
            run.finish()
        story = next(story for story in stories_of(run) if story.error is not None)
        assert story.name.startswith(name[:6]) and run.world.events > 1000
        assert f"the last 20 events of {story.name} " in "\n".join(caught.value.__notes__)
        dump = parsed(written(dump_of(story)))
        assert dump.raised == Raised("AssertionError", f"planted in {method}")
        assert MOMENTS <= len(dump.events) <= 2 * MOMENTS
        assert sum(told.effects is not None for told in dump.events) >= MOMENTS - 1
        error = replay(dump)
        assert isinstance(error, AssertionError) and str(error) == f"planted in {method}"
    with pytest.raises(Diverged, match=f"the brain raised AssertionError: planted in {method}; now it does not"):
        replay(dump)


@pytest.fixture(scope="module")
def run() -> Run:
    """A world that went well, its stories in pages as short as they may be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "EVENTS_PER_VALUE", 0)
        run = Run(PLAN)
        run.finish()
    return run


def test_every_brain_of_a_world_replays_from_the_middle_to_where_it_is(run: Run) -> None:
    for story in stories_of(run):
        dump = parsed(written(dump_of(story)))
        assert len(dump.events) == len(story.moments()) >= MOMENTS and replay(dump) is None
        assert sum(told.effects is not None for told in dump.events) >= MOMENTS
        assert '"foreign"' not in json.dumps(dump.state), "a brain holds a function or an object of others"
    assert run.syncer.story.state.status().t > 0, "the story begins with the run"


def test_a_dump_holds_no_secret(run: Run) -> None:
    tokens = {life._granted[2] for life in run.lives.values() if life._granted is not None}
    for story in stories_of(run):
        text = written(dump_of(story))
        assert len(tokens) == 3 and not any(token in text for token in tokens)


def test_a_replay_that_does_something_else_says_where(run: Run) -> None:
    dump = dump_of(run.syncer.story)
    number = next(i for i, told in enumerate(dump.events) if told.effects)
    other = msgspec.structs.replace(dump.events[number], effects=[])
    spoilt = [*dump.events[:number], other, *dump.events[number + 1 :]]
    with pytest.raises(Diverged, match=r"comes to .*; it was "):
        replay(msgspec.structs.replace(dump, events=spoilt))
    with pytest.raises(Diverged, match="the brain raised OSError: disk; now it does not"):
        replay(msgspec.structs.replace(dump, raised=Raised("OSError", "disk")))
    backwards = [*dump.events, msgspec.structs.replace(dump.events[-1], now=0.0)]
    with pytest.raises(Diverged, match=r"raises AssertionError: time went backwards"):
        replay(msgspec.structs.replace(dump, events=backwards))


def test_lines_show_events_and_below_them_their_effects_the_newest_last(run: Run) -> None:
    told = lines(dump_of(run.syncer.story))
    assert told[0] == f"the last {MOMENTS} events of syncer (time in s, event, its effects):"
    assert told[-2].strip().startswith("WriteTape(event='end'") or "Exit(code=0" in told[-1]
    assert sum(not line.startswith(" " * 14) for line in told[1:]) == MOMENTS
    assert all(len(line) <= dumps.LINE_CHARACTERS_MAX for line in told)


def test_where_a_dump_is_too_long_the_state_and_the_oldest_events_are_left_out(run: Run) -> None:
    dump = dump_of(run.syncer.story)
    whole = written(dump)
    short = parsed(written(dump, len(whole) - 1))
    assert short.state is None and short.events == dump.events[-MOMENTS:]
    shorter = written(dump, 20_000)
    assert len(shorter) <= 20_000 and 0 < len(parsed(shorter).events) < MOMENTS
    assert parsed(shorter).events[-1] == dump.events[-1]
    with pytest.raises(StoryError, match="has no state to begin with, only events to read"):
        replay(short)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a dump of a story"),
        ("[1]", "not a dump of format 1, but None"),
        ("[" * 1_000_000, "not a dump of a story: .*recursion"),
        ('{"format": 2}', "format 1, but 2; read it with the version that wrote it"),
        ('{"format": 1}', "missing required field"),
        (json.dumps({"format": 1, "story": 5}), "Expected `str`"),
        (b"\xff\xfe", "not a dump of a story"),
    ],
    ids=["empty", "list", "deep", "version", "bare", "types", "bytes"],
)
def test_what_is_no_dump_is_refused(text: str | bytes, reason: str) -> None:
    with pytest.raises(StoryError, match=reason):
        parsed(text)


def test_a_dump_beyond_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "DUMP_BYTES_MAX", 10)
    with pytest.raises(StoryError, match="a dump of 11 bytes; at most 10 are read"):
        parsed(" " * 11)


def test_a_dump_that_names_a_class_of_others_makes_nothing(run: Run) -> None:
    dump = dump_of(run.syncer.story)
    hostile = msgspec.structs.replace(dump, classes={**dump.classes, "Popen": "subprocess"}, state={"Popen": {}})
    with pytest.raises(StoryError, match="Popen of subprocess is not made from a file"):
        replay(hostile)
