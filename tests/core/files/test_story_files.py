"""A brain's end is told with its story, and the story is kept, disk or no disk."""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path

import pytest

from swift_diloco.core.files import story_files
from swift_diloco.core.files.story_files import read_story, tell
from swift_diloco.core.files.whole_files import TEMPORARY
from swift_diloco.core.settings.syncer_settings import SyncerSettings
from swift_diloco.core.story.frozen import StoryError
from swift_diloco.core.story.recorder import Draws, Story
from swift_diloco.core.story.replay import replay
from syncer.brain.coordinator import Coordinator
from syncer.events import TimePassed


def ended() -> Story:
    """The story of a coordinator whose time went backwards, which it asserts that it never does."""
    story = Story("syncer", Coordinator(SyncerSettings(), session="s", tokens=Draws(lambda: "token")))
    story.handle(TimePassed(), now=2.0)
    with pytest.raises(AssertionError):
        story.handle(TimePassed(), now=1.0)
    return story


def told(story: Story, folder: Path) -> list[str]:
    """What Python prints of the error, its last lines."""
    assert story.error is not None
    tell(story, folder, story.error)
    return "".join(traceback.format_exception(story.error)).splitlines()


def test_the_story_follows_the_traceback_and_its_file_is_replayed_to_the_same_end(tmp_path: Path) -> None:
    story = ended()
    printed = told(story, tmp_path)
    (path,) = tmp_path.glob("story-syncer-*.json")
    at = printed.index("AssertionError: time went backwards")
    assert printed[0] == "Traceback (most recent call last):" and any("coordinator.py" in line for line in printed[:at])
    assert printed[at + 1 :] == [
        f"the story of syncer follows; it is in {path}, to be replayed",
        "the last 2 events of syncer (time in s, event, its effects):",
        "       2.000 TimePassed()",
        "              Log(level='info', text='waiting for islands to join (0 of 1 are here)')",
        "       1.000 TimePassed()",
        "              raised AssertionError: time went backwards",
    ]
    error = replay(read_story(path))
    assert isinstance(error, AssertionError) and str(error) == str(story.error)


def test_a_full_disk_does_not_hide_the_assertion(tmp_path: Path) -> None:
    now = time.time()
    for second in range(60):  # whatever second it is: to a device that takes nothing
        named = time.strftime("%Y%m%d-%H%M%S", time.localtime(now + second))
        (tmp_path / f"{TEMPORARY}story-syncer-{named}.json-{os.getpid()}").symlink_to("/dev/full")
    printed = told(ended(), tmp_path)
    at = printed.index("AssertionError: time went backwards")
    assert printed[at + 1].startswith(
        f"the story of syncer follows; it could not be written to {tmp_path}/story-syncer-"
    )
    assert printed[at + 1].endswith(": No space left on device")
    assert printed[-1] == "              raised AssertionError: time went backwards"
    assert list(tmp_path.glob("story-*")) == []


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story_files, "DUMP_BYTES_MAX", 10)
    path = tmp_path / "story.json"
    path.write_text(" " * 11)
    with pytest.raises(StoryError, match="has 11 bytes; at most 10 are read"):
        read_story(path)
