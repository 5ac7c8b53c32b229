"""Fetches over real sockets: encodings, pins, what is superseded, buffers that are reused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from swift_diloco.core.files.tape_file import read_tape
from swift_diloco.core.formats import status, tape_lines
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS, Encoding
from swift_diloco.core.formats.messages import (
    Fetch,
    Fetched,
    Piece,
    Refused,
    Superseded,
    ValueName,
)
from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.core.numbers.codec import encode
from swift_diloco.core.numbers.digest import checksum
from syncer import events as ev
from syncer.links import fetches
from syncer.server import ServerRules
from tests.syncer.served import (
    BIG,
    LAYOUT,
    PLAN,
    SESSION,
    SMALL,
    Island,
    World,
    column_cut,
    random_values,
    reference_stream,
    serving,
    whole,
)

pytestmark = pytest.mark.net


def commit(world: World, island: Island, t: int, fragment: int, seed: int) -> tuple[ValueName, NDArray[np.float32]]:
    """One round of one island; returns the new value."""
    before = world.state.present(fragment)
    assert before is not None
    delta, push = random_values(seed)[fragment], f"push-{t}"
    world.perform(ev.OpenUpload(push, island.generation, fragment, Encoding.F32))
    island.upload(push, fragment, delta)
    world.perform(ev.Merge(t, 1, fragment, (ev.MergeInput(island.number, push, 1.0),)))
    finished = world.script.wait(lambda e: isinstance(e, ev.MergeFinished) and e.t == t)
    assert isinstance(finished, ev.MergeFinished)
    name = ValueName(fragment, t, finished.digest)
    world.perform(ev.Commit(t, name, (push,)))
    world.expect_published(name)
    return name, before.values + delta


@pytest.mark.parametrize("cut", ["whole", "columns"])
def test_values_travel_in_the_encoding_of_publication_unless_they_are_asked_for_exactly(
    tmp_path: Path, cut: str
) -> None:
    boxes = [whole(LAYOUT)] if cut == "whole" else [column_cut(LAYOUT, rank) for rank in (0, 1)]
    with serving(tmp_path, rules=ServerRules(SESSION, publish_encoding=Encoding.BF16)) as world:
        island = world.join("g", boxes)
        values = random_values(1)
        names = world.publish_initial(island, values)
        for rank, client in enumerate(island.bulk):
            expected = reference_stream(island.pieces(rank), BIG, values[BIG])[:CHUNK_ELEMENTS]
            for exact, encoding in ((False, Encoding.BF16), (True, Encoding.F32)):
                client.send(Fetch(SESSION, "g", rank, names[BIG], 0, 1, exact))
                piece, payload = client.receive()
                data = encode(expected, encoding).tobytes()
                assert piece == Piece(SESSION, "g", names[BIG], 0, checksum(data), exact)
                assert payload is not None and bytes(payload) == data


def test_commit_during_a_fetch_leaves_the_value_that_is_being_fetched(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [column_cut(LAYOUT, 0), column_cut(LAYOUT, 1)])
        names = world.publish_initial(island, random_values(1))
        old = random_values(1)[BIG]
        island.bulk[0].send(Fetch(SESSION, "g", 0, names[BIG], 0, 1))
        np.testing.assert_array_equal(
            island.receive_stream(0, names[BIG]), reference_stream(island.pieces(0), BIG, old)
        )
        island.bulk[0].send(Fetched(SESSION, "g", 0, names[BIG]))
        new, values = commit(world, island, 1, BIG, 2)
        island.bulk[1].send(Fetch(SESSION, "g", 1, names[BIG], 0, 1))
        np.testing.assert_array_equal(
            island.receive_stream(1, names[BIG]), reference_stream(island.pieces(1), BIG, old)
        )
        island.bulk[1].send(Fetched(SESSION, "g", 1, names[BIG]))
        world.peer_of(island.bulk[1])
        island.bulk[0].send(Fetch(SESSION, "g", 0, names[BIG], 0, 1))
        assert island.bulk[0].expect(Superseded) == Superseded(SESSION, "g", names[BIG], new)
        island.bulk[0].send(Fetch(SESSION, "g", 0, new, 0, 1))
        np.testing.assert_array_equal(island.receive_stream(0, new), reference_stream(island.pieces(0), BIG, values))


def test_fetched_is_on_the_tape_once_per_rank_and_value_with_its_bytes(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [column_cut(LAYOUT, 0), column_cut(LAYOUT, 1)], island=3)
        names = world.publish_initial(island, random_values(1))
        for rank in range(2):
            island.bulk[rank].send(Fetch(SESSION, "g", rank, names[SMALL], 0, 1))
            island.receive_stream(rank, names[SMALL])
            for _ in range(2):
                island.bulk[rank].send(Fetched(SESSION, "g", rank, names[SMALL]))
            world.peer_of(island.bulk[rank])
    lines = [line for _, line in read_tape(tmp_path / "tape.jsonl") if isinstance(line, tape_lines.Fetched)]
    assert [msgspec.structs.replace(line, time=0.0) for line in lines] == [
        tape_lines.Fetched(
            island=3,
            generation="g",
            rank=rank,
            fragment=SMALL,
            version=0,
            digest=names[SMALL].digest,
            bytes=4 * island.pieces(rank).elements(SMALL),
        )
        for rank in range(2)
    ]
    told = status.decode((tmp_path / "status.json").read_bytes())
    assert told.bytes_fetched == 4 * sum(LAYOUT.tensors[i].elements for i in PLAN.fragments[SMALL])
    assert told.bytes_pushed == 4 * LAYOUT.elements


def test_too_many_pins_supersede_the_slowest_and_only_twice(tmp_path: Path) -> None:
    with serving(tmp_path, rules=ServerRules(SESSION, pinned_fragments_max=0)) as world:
        island = world.join("g", [whole(LAYOUT)])
        present = world.publish_initial(island, random_values(1))[BIG]
        for t in (1, 2):
            island.bulk[0].send(Fetch(SESSION, "g", 0, present, 0, 1))
            island.bulk[0].receive()
            old = present
            present, _ = commit(world, island, t, BIG, t)
            assert island.bulk[0].expect(Superseded) == Superseded(SESSION, "g", old, present)
        island.bulk[0].send(Fetch(SESSION, "g", 0, present, 0, 1))
        island.bulk[0].receive()
        commit(world, island, 3, BIG, 3)
        island.bulk[0].send(Fetch(SESSION, "g", 0, present, 1, 1))
        piece, _ = island.bulk[0].receive()
        assert isinstance(piece, Piece) and (piece.name, piece.index) == (present, 1)


def test_rank_that_moves_on_to_a_newer_value_releases_the_older_one(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [whole(LAYOUT)])
        old = world.publish_initial(island, random_values(1))[BIG]
        island.bulk[0].send(Fetch(SESSION, "g", 0, old, 0, 1))
        island.bulk[0].receive()
        new, values = commit(world, island, 1, BIG, 2)
        island.bulk[0].send(Fetch(SESSION, "g", 0, new, 0, 2))
        np.testing.assert_array_equal(island.receive_stream(0, new), values)
        island.bulk[0].send(Fetch(SESSION, "g", 0, old, 1, 1))
        assert island.bulk[0].expect(Superseded).old == old


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (2, 1), (0, 0), (0, 65)])
def test_fetch_outside_the_stream_is_refused_with_what_may_be_asked(tmp_path: Path, first: int, count: int) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [whole(LAYOUT)])
        name = world.publish_initial(island, random_values(1))[BIG]
        island.bulk[0].send(Fetch(SESSION, "g", 0, name, first, count))
        refused = island.bulk[0].expect(Refused)
        assert f"a fetch of {count} chunks from number {first}; this rank has 2" in refused.reason


def test_fetch_before_there_are_values_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [whole(LAYOUT)])
        for fragment in (0, 7, -1):
            island.bulk[0].send(Fetch(SESSION, "g", 0, ValueName(fragment, 0, "d"), 0, 1))
            assert f"fragment {fragment}, which has no value" in island.bulk[0].expect(Refused).reason


def test_large_values_with_cut_boxes_travel_whole_when_buffers_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen times more chunks than buffers: each is reused only after ZeroMQ sent what was in it."""
    layout = make_layout([TensorSpec("layers.0.weight", (2048, 2 * 2048), "rda")])
    plan = plan_fragments(layout, 1, "binpack")
    monkeypatch.setattr(fetches, "PIECE_BUFFERS_MAX", 2)
    with serving(tmp_path) as world:
        island = world.join("g", [column_cut(layout, 0), column_cut(layout, 1)], model=(layout, plan))
        values = np.random.default_rng(3).standard_normal(layout.elements).astype(np.float32)
        (name,) = world.publish_initial(island, [values])
        for rank in range(2):
            island.bulk[rank].send(Fetch(SESSION, "g", rank, name, 0, 16))
        for rank in range(2):
            expected = reference_stream(island.pieces(rank), 0, values)
            np.testing.assert_array_equal(island.receive_stream(rank, name), expected)
