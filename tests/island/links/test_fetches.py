"""What a rank asks for and when, told by every message it sends; no socket, no thread."""

from __future__ import annotations

import numpy as np
import pytest

from swift_diloco.core.errors import PeerError
from swift_diloco.core.formats.chunks import CHUNK_ELEMENTS
from swift_diloco.core.formats.messages import Contract, Fetch, Fetched, IslandMessage, Piece, Superseded, ValueName
from swift_diloco.core.layout.boxes import Box
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.core.layout.pieces import PieceMap
from swift_diloco.core.layout.tensors import TensorSpec, make_layout
from swift_diloco.core.numbers.digest import checksum
from swift_diloco.island.links.fetches import (
    CHECKSUM_RETRIES_MAX,
    FETCH_BATCH_CHUNKS,
    FETCH_CREDIT_CHUNKS,
    Fetches,
    Pass,
)
from swift_diloco.island.numbers.host_buffers import HostBuffers

RANK = 2
V1, V2 = ValueName(0, 1, "a"), ValueName(0, 2, "b")


class Link:
    """Fetches whose every message is kept; `up` says whether it can be sent."""

    def __init__(self, chunks: int = 2, fragments: int = 1, contract: Contract | None = None, empty: int = 0) -> None:
        self.sent: list[IslandMessage] = []
        self.up = True
        specs = [TensorSpec(f"t{i:02}", (chunks * CHUNK_ELEMENTS,), "avg") for i in range(fragments + empty)]
        layout = make_layout(specs)
        boxes = tuple(Box(i, (0,), specs[i].shape) for i in range(fragments))
        self.fetches = Fetches(RANK, self._send, HostBuffers())
        self.fetches.bind(PieceMap(layout, FragmentPlan(tuple((i,) for i in range(fragments + empty))), boxes))
        self.fetches.begin(Pass("s", "g", "t"), contract or Contract(), [])

    def _send(self, message: IslandMessage) -> bool:
        if self.up:
            self.sent.append(message)
        return self.up

    def told(self) -> list[IslandMessage]:
        """What was sent since the last look."""
        sent, self.sent = self.sent, []
        return sent

    def want(self, name: ValueName) -> list[IslandMessage]:
        self.fetches.want(name)
        return self.told()

    def arrive(self, name: ValueName, *indices: int, value: float = 1.0, damage: int = 0) -> list[IslandMessage]:
        payload = np.full(CHUNK_ELEMENTS, value, np.float32).tobytes()
        exact = self.fetches._shared.exact
        for index in indices:
            self.fetches.arrived(Piece("s", "g", name, index, checksum(payload) ^ damage, exact), payload)
        return self.told()


def fetch(name: ValueName, first: int, count: int, *, exact: bool = False) -> Fetch:
    return Fetch("s", "g", RANK, name, first, count, exact)


def fetched(name: ValueName) -> Fetched:
    return Fetched("s", "g", RANK, name)


def test_a_wanted_value_is_asked_for_once_staged_when_whole_and_taken_once() -> None:
    link = Link()
    assert link.want(V1) == [fetch(V1, 0, 2)] and link.want(V1) == []
    assert not link.fetches.reserve(V1)
    assert link.arrive(V1, 0, value=5.0) == [] and not link.fetches.reserve(V1)
    assert link.arrive(V1, 1, value=6.0) == [fetched(V1)]
    assert link.want(V1) == [], "it is staged"
    assert link.fetches.reserve(V1) and not link.fetches.reserve(V1)
    assert link.fetches.take(V1)[:: CHUNK_ELEMENTS - 1].tolist() == [5.0, 5.0, 6.0]
    assert link.fetches.fetched_bytes == 2 * 4 * CHUNK_ELEMENTS


def test_credit_is_spent_at_once_and_renewed_in_batches() -> None:
    link = Link(chunks=FETCH_CREDIT_CHUNKS + FETCH_BATCH_CHUNKS + 1)
    assert link.want(V1) == [fetch(V1, 0, FETCH_CREDIT_CHUNKS)]
    for index in range(FETCH_BATCH_CHUNKS - 1):
        assert link.arrive(V1, index) == []
    more = [fetch(V1, FETCH_CREDIT_CHUNKS, FETCH_BATCH_CHUNKS)]
    assert link.arrive(V1, FETCH_BATCH_CHUNKS - 1) == more
    last = [fetch(V1, FETCH_CREDIT_CHUNKS + FETCH_BATCH_CHUNKS, 1)]
    assert link.arrive(V1, FETCH_BATCH_CHUNKS) == last, "the last chunk makes no whole batch"


def test_no_more_fragments_are_staged_than_may_be_and_the_next_begins_when_one_is_held() -> None:
    link = Link(chunks=1, fragments=5, contract=Contract(sync_every_steps=5))
    names = [ValueName(i, 1, "a") for i in range(5)]
    assert [link.want(name) for name in names] == [*([fetch(name, 0, 1)] for name in names[:4]), []]
    for name in names[:4]:
        assert link.arrive(name, 0) == [fetched(name)]
    assert link.fetches.reserve(names[0])
    link.fetches.take(names[0])
    link.fetches.name_held(names[0])
    assert link.told() == [fetch(names[4], 0, 1)]


def test_what_is_held_provided_or_owned_by_nobody_here_is_not_fetched() -> None:
    link = Link(empty=1)
    link.fetches.name_held(V1)
    link.fetches.provides_init()
    nobodys = ValueName(1, 1, "n")
    assert [link.want(name) for name in (V1, ValueName(0, 0, "own"), nobodys)] == [[], [], []]
    assert link.fetches.reserve(nobodys) and link.fetches.take(nobodys).size == 0


def test_the_provider_fetches_its_values_back_where_they_are_published_coarser() -> None:
    link = Link(contract=Contract(publish_encoding="bf16"))
    link.fetches.provides_init()
    initial = ValueName(0, 0, "i")
    assert link.want(initial) == [fetch(initial, 0, 2)]


def test_a_newer_value_replaces_an_older_one_on_its_way_or_staged_but_not_a_reserved_one() -> None:
    link = Link(chunks=1)
    assert link.want(V1) == [fetch(V1, 0, 1)]
    assert link.want(V2) == [fetch(V2, 0, 1)]
    assert link.arrive(V1, 0) == [] and link.arrive(V2, 0) == [fetched(V2)]
    assert link.fetches.reserve(V2)
    newer = ValueName(0, 3, "c")
    assert link.want(newer) == [fetch(newer, 0, 1)]
    assert link.arrive(newer, 0, value=3.0) == [fetched(newer)]
    link.fetches.release(V2)
    assert not link.fetches.reserve(V2) and link.fetches.reserve(newer)
    assert link.fetches.take(newer)[0] == 3.0


def test_a_superseded_fetch_goes_on_with_the_present_value_and_another_one_with_its_own() -> None:
    link = Link()
    link.want(V1)
    link.fetches.superseded(Superseded("s", "g", ValueName(0, 0, "z"), V2))
    assert link.told() == []
    link.fetches.superseded(Superseded("s", "g", V1, V2))
    assert link.told() == [fetch(V2, 0, 2)]


@pytest.mark.parametrize("index", [1, 5])
def test_a_piece_out_of_its_turn_is_not_taken(index: int) -> None:
    link = Link(chunks=3)
    link.want(V1)
    assert link.arrive(V1, index) == []
    assert link.arrive(V1, 0, 1, 2) == [fetched(V1)]


def test_after_a_damaged_piece_it_and_what_follows_are_asked_for_again_but_not_for_ever() -> None:
    link = Link(chunks=3)
    link.want(V1)
    assert link.arrive(V1, 0) == []
    for _ in range(CHECKSUM_RETRIES_MAX):
        assert link.arrive(V1, 1, damage=1) == [fetch(V1, 1, 2)]
    with pytest.raises(PeerError, match=f"{CHECKSUM_RETRIES_MAX + 1} damaged pieces of .*'a'"):
        link.arrive(V1, 1, damage=1)


def test_a_lost_connection_goes_on_at_the_first_missing_chunk() -> None:
    link = Link(chunks=3)
    link.want(V1)
    link.arrive(V1, 0)
    link.up = False
    link.fetches.connection_lost()
    link.fetches.ask()
    assert link.told() == []
    link.up = True
    link.fetches.ask()
    assert link.told() == [fetch(V1, 1, 2)]


def test_a_new_generation_voids_what_was_staged_and_under_way() -> None:
    link = Link(chunks=1)
    link.want(V1)
    link.arrive(V1, 0)
    link.fetches.void()
    link.fetches.begin(Pass("s", "g2", "t"), Contract(), [])
    assert not link.fetches.reserve(V1)
    assert link.want(V1) == [Fetch("s", "g2", RANK, V1, 0, 1)]


def test_the_final_cut_is_fetched_exactly_also_where_it_is_held_or_staged() -> None:
    link = Link(chunks=1)
    link.want(V1)
    link.arrive(V1, 0)
    link.fetches.name_held(V1)
    link.fetches.only_exactly()
    assert not link.fetches.reserve(V1), "what is staged was not fetched exactly"
    link.fetches.want_exactly([V1])
    assert link.told() == [fetch(V1, 0, 1, exact=True)]
    assert link.arrive(V1, 0) == [fetched(V1)]
    assert link.fetches.reserve(V1)
