"""What a syncer's checkpoint says: the names and counts of its manifest, without a byte of the tensors.

Plain data. The syncer's brain makes it and continues from it, the files (`checkpoint_files`) hold it; it is here, in
the shared part, because tools read checkpoints too.

Invariants: `history[f][-1] == values[f]`; a carried push is in no value; a merged anchor has its delta in a value.
"""

from __future__ import annotations

from typing import Any

import msgspec

from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import Layout

FORMAT = 1
"""Version of the checkpoint's format. A reader refuses every other."""


class PushFacts(msgspec.Struct, kw_only=True):
    """What a push is, from its admission to its merge, in memory and in a checkpoint."""

    push: str
    island: int
    generation: str
    anchor: ValueName
    steps: int
    """Successful local steps since the anchor was installed; 0: nothing was learned, there is no upload."""
    tokens: int
    capture_step: int
    """Local step at whose end the delta was taken."""
    weight: float

    def facts(self) -> dict[str, Any]:
        """The facts alone, to make another kind of push of."""
        return {name: getattr(self, name) for name in PushFacts.__struct_fields__}


class CarriedPush(PushFacts, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec has no such rule
    """A complete push that missed its round and waits for the next one of its fragment."""

    fragment: int
    t: int
    """The outer step that it missed."""
    payload_bytes: int


class SavedState(msgspec.Struct, frozen=True):
    """The syncer's state after outer step `step`."""

    run: str
    step: int
    fingerprint: str
    """Of the layout."""
    values: tuple[ValueName, ...]
    """The present value of each fragment."""
    history: tuple[tuple[ValueName, ...], ...]
    """Per fragment: the values it descends from, oldest first, the present one last."""
    merged: tuple[tuple[int, tuple[ValueName, ...]], ...] = ()
    """Per island: anchors whose deltas are in the values, in the order of merging. None is ever merged again."""
    reached: tuple[tuple[int, int, int], ...] = ()
    """(island, fragment, highest local step whose work is in the values)."""
    carried: tuple[CarriedPush, ...] = ()
    """Pushes held for later, oldest first."""
    contract: dict[str, str | int | float | bool] = {}
    """Settings that a run keeps from its start to its end."""
    started_with: dict[str, int] = {}
    """What the changeable settings were when the syncer was started."""
    overrides: dict[str, int] = {}
    """Settings that an operator changed while the run went on."""
    final: bool = False
    """The values are the final cut."""
    unsaved: tuple[int, ...] = ()
    """Islands of the final cut whose last save was not known to be durable."""


class FileEntry(msgspec.Struct, frozen=True):
    """A file that a manifest refers to. `checksum` is xxh3-128 (hex) of all its bytes."""

    name: str
    size: int
    checksum: str


class Manifest(msgspec.Struct, frozen=True):
    """One checkpoint: the state and the files that hold its tensors."""

    format: int
    wire_version: int
    """Of the syncer that wrote it, for who looks into the file. Reading depends on `format` alone."""
    number: int
    """Counts the manifests of a folder."""
    state: SavedState
    layout: FileEntry
    fragments: tuple[FileEntry, ...]
    carried: tuple[FileEntry, ...] = ()


class Shape(msgspec.Struct, frozen=True):
    """The content of the layout file: too large to be in every manifest."""

    layout: Layout
    plan: FragmentPlan
