"""Uploads over real sockets: credit, damage, dropped links."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import (
    Cancel,
    Chunk,
    ValueName,
    Window,
)
from swift_diloco.core.numbers.codec import encode
from swift_diloco.core.numbers.digest import checksum
from syncer import events as ev
from syncer.links import uploads
from tests.syncer.served import (
    BIG,
    LAYOUT,
    SESSION,
    SMALL,
    column_cut,
    random_values,
    reference_stream,
    serving,
    whole,
)

pytestmark = pytest.mark.net


def test_windows_open_as_chunks_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "WINDOW_CHUNKS", 1)
    with serving(tmp_path) as world:
        island = world.join("g", [whole(LAYOUT)])
        client, values = island.bulk[0], random_values(1)[BIG]
        world.perform(ev.OpenUpload("u", "g", BIG, Encoding.F32))
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
        world.perform(ev.OpenUpload("init-0", "g", 0, Encoding.F32), ev.OpenUpload("init-1", "g", 1, Encoding.F32))
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
        world.perform(ev.OpenUpload("u", "g", SMALL, Encoding.F32))
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
        world.perform(ev.OpenUpload("u", "g", BIG, Encoding.F32))
        assert client.expect(Window).upto == 1
        client.send(*island.chunk(0, "u", 1, values))
        assert client.expect(Window) == Window(SESSION, "g", "u", BIG, 0, 1)
        assert not [e for e in world.script.events if isinstance(e, ev.UploadProgressed)]


def test_rank_that_comes_back_goes_on_at_its_first_missing_chunk(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [whole(LAYOUT)])
        values = random_values(1)[BIG]
        world.perform(ev.OpenUpload("u", "g", BIG, Encoding.F32))
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
        world.perform(ev.OpenUpload("complete", "g", SMALL, Encoding.F32))
        island.upload("complete", SMALL, random_values(1)[SMALL])
        world.perform(ev.OpenUpload("partial", "g", BIG, Encoding.F32))
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
            world.perform(ev.OpenUpload(f"u{i}", f"g{i}", BIG, Encoding.F32))
        assert islands[0].bulk[0].expect(Window).upto == 1
        islands[1].upload("u1", BIG, random_values(1)[BIG])


def test_credit_of_a_link_that_is_lost_goes_to_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "RECEIVING_CHUNKS_MAX", 2)
    monkeypatch.setattr(uploads, "WINDOW_CHUNKS_MIN", 1)
    with serving(tmp_path) as world:
        islands = [world.join(f"g{i}", [whole(LAYOUT)], island=i) for i in range(2)]
        world.perform(ev.OpenUpload("u0", "g0", BIG, Encoding.F32))
        assert islands[0].bulk[0].expect(Window).upto == 2
        islands[0].bulk[0].socket.close()
        world.script.wait_for(ev.PeerGone)
        world.perform(ev.OpenUpload("u1", "g1", BIG, Encoding.F32))
        assert islands[1].bulk[0].expect(Window).upto == 2


def test_bfloat16_upload_lands_decoded_at_its_places(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        island = world.join("g", [column_cut(LAYOUT, 0), column_cut(LAYOUT, 1)])
        world.publish_initial(island, [np.zeros_like(v) for v in random_values(1)])
        exact = np.round(random_values(2)[SMALL] * 4).astype(np.float32)
        world.perform(ev.OpenUpload("u", "g", SMALL, Encoding.BF16))
        for rank, client in enumerate(island.bulk):
            client.expect(Window)
            payload = encode(reference_stream(island.pieces(rank), SMALL, exact), Encoding.BF16)
            client.send(Chunk(SESSION, "g", "u", rank, 0, checksum(payload)), payload.data)
        completed = world.script.wait(lambda e: isinstance(e, ev.UploadCompleted) and e.upload == "u")
        assert completed == ev.UploadCompleted("u", exact.size * 2)
        world.perform(ev.Merge(1, 1, SMALL, (ev.MergeInput(0, "u", 1.0),)))
        name = ValueName(SMALL, 1, world.script.wait_for(ev.MergeFinished).digest)
        world.perform(ev.Commit(1, name, ("u",)))
        world.expect_published(name)
        present = world.state.present(SMALL)
        assert present is not None
        np.testing.assert_array_equal(present.values, exact)
