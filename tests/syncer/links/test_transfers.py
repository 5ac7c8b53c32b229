"""Uploads and fetches over real sockets: credit, damage, dropped links, pins."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from swift_diloco.core.files.tape_file import read_tape
from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS, Encoding
from swift_diloco.core.formats.messages import (
    Cancel,
    Chunk,
    Fetch,
    Fetched,
    Piece,
    Refused,
    Superseded,
    ValueName,
    Window,
)
from swift_diloco.core.layout.fragments import plan_fragments
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.core.numbers.codec import encode
from swift_diloco.core.numbers.digest import checksum
from syncer import events as ev
from syncer.links import fetches, uploads
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
    world.perform(ev.OpenUpload(push, island.generation, fragment, "f32"))
    island.upload(push, fragment, delta)
    world.perform(ev.Merge(t, 1, fragment, (ev.Merging(island.number, push, 1.0),)))
    finished = world.script.wait(lambda e: isinstance(e, ev.MergeFinished) and e.t == t)
    assert isinstance(finished, ev.MergeFinished)
    name = ValueName(fragment, t, finished.digest)
    world.perform(ev.Commit(t, name, (push,)))
    world.expect_published(name)
    return name, before.values + delta


# ---------------------------------------------------------------------------------------------------------------------
# Uploads
# ---------------------------------------------------------------------------------------------------------------------


def test_windows_open_as_chunks_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "WINDOW_CHUNKS", 1)
    with serving(tmp_path) as world:
        island = world.join("g", [whole(LAYOUT)])
        client, values = island.bulk[0], random_values(1)[BIG]
        world.perform(ev.OpenUpload("u", "g", BIG, "f32"))
        assert client.expect(Window) == Window(SESSION, "g", "u", BIG, 0, 1)
        client.send(*island.chunk(0, "u", 0, values))
        assert client.expect(Window) == Window(SESSION, "g", "u", BIG, 1, 2)
        assert not [e for e in world.script.events if isinstance(e, ev.UploadCompleted)]
        client.send(*island.chunk(0, "u", 1, values))
        assert world.script.wait_for(ev.UploadCompleted) == ev.UploadCompleted("u", values.nbytes)
        assert world.script.events.count(ev.UploadProgressed("u")) == 1


def test_damaged_chunk_is_asked_for_again_and_then_merged_right(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [whole(LAYOUT)])
        client, values = island.bulk[0], random_values(1)
        world.perform(ev.OpenUpload("init-0", "g", 0, "f32"), ev.OpenUpload("init-1", "g", 1, "f32"))
        windows = {w.upload: w for w in (client.expect(Window), client.expect(Window))}
        big, small = f"init-{BIG}", f"init-{SMALL}"
        first, payload = island.chunk(0, big, 0, values[BIG])
        client.send(msgspec.structs.replace(first, checksum=first.checksum ^ 1), payload)
        client.send(*island.chunk(0, big, 1, values[BIG]))
        assert client.expect(Window) == windows[big]
        for index in range(2):
            client.send(*island.chunk(0, big, index, values[BIG]))
        client.send(*island.chunk(0, small, 0, values[SMALL]))
        world.script.wait(lambda e: isinstance(e, ev.UploadCompleted) and e.upload == big)
        world.script.wait(lambda e: isinstance(e, ev.UploadCompleted) and e.upload == small)
        world.perform(ev.AdoptInit(("init-0", "init-1")))
        world.script.wait_for(ev.InitAdopted)
        for fragment in range(2):
            present = world.state.present(fragment)
            assert present is not None
            np.testing.assert_array_equal(present.values, values[fragment])


def test_chunk_of_a_wrong_size_counts_as_damaged_and_three_times_is_the_end(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [whole(LAYOUT)])
        client, values = island.bulk[0], random_values(1)[SMALL]
        world.perform(ev.OpenUpload("u", "g", SMALL, "f32"))
        for _ in range(uploads.DAMAGED_MAX):
            assert client.expect(Window).first == 0
            client.send(*island.chunk(0, "u", 0, values[:-1]))
        cancel = client.expect(Cancel)
        assert cancel.upload == "u" and cancel.reason == "chunk 0 of rank 0 arrived damaged 3 times"
        assert world.script.wait_for(ev.UploadFailed) == ev.UploadFailed("u", cancel.reason)
        client.send(*island.chunk(0, "u", 0, values))
        world.peer_of(client)
        assert not [e for e in world.script.events if isinstance(e, ev.UploadCompleted)] and client.silent()


def test_chunks_without_credit_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "WINDOW_CHUNKS", 1)
    with serving(tmp_path) as world:
        island = world.join("g", [whole(LAYOUT)])
        client, values = island.bulk[0], random_values(1)[BIG]
        world.perform(ev.OpenUpload("u", "g", BIG, "f32"))
        assert client.expect(Window).upto == 1
        client.send(*island.chunk(0, "u", 1, values))
        assert client.expect(Window) == Window(SESSION, "g", "u", BIG, 0, 1)
        assert not [e for e in world.script.events if isinstance(e, ev.UploadProgressed)]


def test_rank_that_comes_back_goes_on_at_its_first_missing_chunk(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [whole(LAYOUT)])
        values = random_values(1)[BIG]
        world.perform(ev.OpenUpload("u", "g", BIG, "f32"))
        island.bulk[0].expect(Window)
        island.bulk[0].send(*island.chunk(0, "u", 0, values))
        world.script.wait_for(ev.UploadProgressed)
        lost = island.bulk[0]
        lost.socket.close()
        world.script.wait_for(ev.PeerGone)
        island.bulk[0] = world.client()
        island.register(0)
        assert island.bulk[0].expect(Window) == Window(SESSION, "g", "u", BIG, 1, 2)
        island.bulk[0].send(*island.chunk(0, "u", 1, values))
        assert world.script.wait_for(ev.UploadCompleted).payload_bytes == values.nbytes


def test_end_of_a_generation_cancels_its_unfinished_uploads_and_keeps_complete_ones(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [whole(LAYOUT)])
        world.perform(ev.OpenUpload("complete", "g", SMALL, "f32"))
        island.upload("complete", SMALL, random_values(1)[SMALL])
        world.perform(ev.OpenUpload("partial", "g", BIG, "f32"))
        island.bulk[0].expect(Window)
        world.perform(ev.ForgetGeneration("g", "lease ended"))
        assert island.bulk[0].expect(Cancel) == Cancel(SESSION, "g", "partial", "lease ended")
        world.perform(ev.DropUpload("complete", "not wanted"), ev.DropUpload("unknown", "no matter"))
        world.peer_of(island.bulk[0])
        assert island.bulk[0].silent()


def test_one_ranks_silence_leaves_credit_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "RECEIVING_CHUNKS_MAX", 1)
    monkeypatch.setattr(uploads, "WINDOW_CHUNKS_MIN", 1)
    with serving(tmp_path) as world:
        islands = [world.join(f"g{i}", [whole(LAYOUT)], island=i) for i in range(2)]
        for i in range(2):
            world.perform(ev.OpenUpload(f"u{i}", f"g{i}", BIG, "f32"))
        assert islands[0].bulk[0].expect(Window).upto == 1
        islands[1].upload("u1", BIG, random_values(1)[BIG])


def test_credit_of_a_link_that_is_lost_goes_to_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "RECEIVING_CHUNKS_MAX", 2)
    monkeypatch.setattr(uploads, "WINDOW_CHUNKS_MIN", 1)
    with serving(tmp_path) as world:
        islands = [world.join(f"g{i}", [whole(LAYOUT)], island=i) for i in range(2)]
        world.perform(ev.OpenUpload("u0", "g0", BIG, "f32"))
        assert islands[0].bulk[0].expect(Window).upto == 2
        islands[0].bulk[0].socket.close()
        world.script.wait_for(ev.PeerGone)
        world.perform(ev.OpenUpload("u1", "g1", BIG, "f32"))
        assert islands[1].bulk[0].expect(Window).upto == 2


def test_bfloat16_upload_lands_decoded_at_its_places(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [column_cut(LAYOUT, 0), column_cut(LAYOUT, 1)])
        world.publish_initial(island, [np.zeros_like(v) for v in random_values(1)])
        exact = np.round(random_values(2)[SMALL] * 4).astype(np.float32)
        world.perform(ev.OpenUpload("u", "g", SMALL, "bf16"))
        for rank, client in enumerate(island.bulk):
            client.expect(Window)
            payload = encode(reference_stream(island.pieces(rank), SMALL, exact), Encoding.BF16)
            client.send(Chunk(SESSION, "g", "u", rank, 0, checksum(payload)), payload.data)
        completed = world.script.wait(lambda e: isinstance(e, ev.UploadCompleted) and e.upload == "u")
        assert completed == ev.UploadCompleted("u", exact.size * 2)
        world.perform(ev.Merge(1, 1, SMALL, (ev.Merging(0, "u", 1.0),)))
        name = ValueName(SMALL, 1, world.script.wait_for(ev.MergeFinished).digest)
        world.perform(ev.Commit(1, name, ("u",)))
        world.expect_published(name)
        present = world.state.present(SMALL)
        assert present is not None
        np.testing.assert_array_equal(present.values, exact)


# ---------------------------------------------------------------------------------------------------------------------
# Fetches
# ---------------------------------------------------------------------------------------------------------------------


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
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["bytes_fetched"] == 4 * sum(LAYOUT.tensors[i].elements for i in PLAN.fragments[SMALL])
    assert status["bytes_pushed"] == 4 * LAYOUT.elements


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
