"""A small state with its arrays, and a store in a folder, for tests of checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swift_diloco.core.files.checkpoint_files import Intact, read_newest
from swift_diloco.core.formats.manifest import CarriedPush, Manifest, SavedState, Shape
from swift_diloco.core.formats.messages import ValueName
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.core.numbers.digest import fragment_digest
from syncer.files.store import FragmentPart, Store

LAYOUT = make_layout([TensorSpec("a", (4,), "avg"), TensorSpec("b", (6,), "avg")])
PLAN = FragmentPlan(((0,), (1,)))
SHAPE = Shape(LAYOUT, PLAN)
SIZES = (4, 6)


def values_of(fragment: int, version: int) -> NDArray[np.float32]:
    return np.arange(SIZES[fragment], dtype=np.float32) + 100 * version


def name_of(fragment: int, version: int) -> ValueName:
    return ValueName(fragment, version, fragment_digest(values_of(fragment, version)))


def part_of(fragment: int, version: int, *, momentum: bool = True) -> FragmentPart:
    return FragmentPart(values_of(fragment, version), -values_of(fragment, version) if momentum else None)


def state_of(versions: tuple[int, int], **changes: object) -> SavedState:
    """The state whose fragments have these versions; its step is the higher one."""
    names = tuple(name_of(f, version) for f, version in enumerate(versions))
    fields: dict[str, object] = {
        "run": "run",
        "step": max(versions),
        "fingerprint": LAYOUT.fingerprint,
        "values": names,
        "history": tuple((name,) for name in names),
    }
    return SavedState(**(fields | changes))  # type: ignore[arg-type]


def write(store: Store, versions: tuple[int, int], carried: tuple[CarriedPush, ...] = ()) -> Manifest:
    """One checkpoint, as the writer writes it."""
    layout = store.write_shape(SHAPE)
    state = state_of(versions, carried=carried)
    fragments = [store.write_fragment(name, part_of(name.fragment, name.version)) for name in state.values]
    late = [store.write_carried(push, lambda push=push: values_of(push.fragment, 7)) for push in carried]  # type: ignore[misc]
    manifest = store.write_manifest(state, layout, (fragments, late))
    store.clean()
    return manifest


def reopened(folder: Path, keep: int = 2) -> tuple[Store, Intact]:
    """What a syncer that is started again with --resume opens."""
    intact = read_newest(folder)
    store = Store(folder, keep)
    store.resumed(intact.manifest)
    return store, intact


def late_push(push: str = "g.1", island: int = 1) -> CarriedPush:
    return CarriedPush(
        push=push,
        island=island,
        generation="g",
        anchor=name_of(1, 0),
        steps=3,
        tokens=30,
        capture_step=9,
        weight=300.0,
        fragment=1,
        t=2,
        payload_bytes=24,
    )
