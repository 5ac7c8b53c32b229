"""The book of generations and their links."""

from __future__ import annotations

from syncer.events import RegisterRank
from syncer.links.rank_links import RankLinks
from tests.syncer.served import LAYOUT, PLAN, column_cut, whole


def register(links: RankLinks, generation: str, rank: int, peer: str) -> None:
    links.register(RegisterRank(generation, 0, rank, peer, column_cut(LAYOUT, rank)), LAYOUT, PLAN)


def test_rank_is_found_only_on_its_own_link_and_by_its_own_names() -> None:
    links = RankLinks()
    register(links, "g", 1, "p1")
    found = links.find("p1", "g", 1)
    assert found is not None and (found.generation, found.rank, found.peer) == ("g", 1, "p1")
    assert links.find("p1", "g", 0) is None
    assert links.find("p1", "other", 1) is None
    assert links.find("p2", "g", 1) is None


def test_new_link_of_a_rank_replaces_the_earlier_one() -> None:
    links = RankLinks()
    register(links, "g", 0, "old")
    earlier = links.find("old", "g", 0)
    register(links, "g", 0, "new")
    assert links.find("old", "g", 0) is None and links.bulk_peer("g", 0) == "new"
    assert earlier is not None and earlier.peer is None
    assert links.peer_gone("old") is None
    assert links.bulk_peer("g", 0) == "new"


def test_everybody_is_each_control_and_bulk_link_of_each_generation() -> None:
    links = RankLinks()
    links.welcomed("g", "control")
    register(links, "g", 0, "bulk0")
    register(links, "g", 1, "bulk1")
    links.welcomed("h", "control-h")
    assert list(links.everybody()) == [("g", "control"), ("g", "bulk0"), ("g", "bulk1"), ("h", "control-h")]
    assert [link.rank for link in links.ranks("g")] == [0, 1] and links.ranks("unknown") == []


def test_link_that_is_gone_belongs_to_nobody_until_the_rank_comes_back() -> None:
    links = RankLinks()
    links.welcomed("g", "control")
    register(links, "g", 0, "bulk")
    gone = links.peer_gone("bulk")
    assert gone is not None and gone.rank == 0 and gone.peer is None
    assert links.peer_gone("control") is None
    assert list(links.everybody()) == []
    assert len(links.ranks("g")) == 1
    register(links, "g", 0, "again")
    assert list(links.everybody()) == [("g", "again")]


def test_forgotten_generation_has_no_links() -> None:
    links = RankLinks()
    links.welcomed("g", "control")
    register(links, "g", 0, "bulk")
    assert [link.rank for link in links.forget("g")] == [0]
    assert links.find("bulk", "g", 0) is None and list(links.everybody()) == [] and links.forget("g") == []


def test_streams_follow_from_the_boxes() -> None:
    links = RankLinks()
    link = links.register(RegisterRank("g", 0, 0, "p", whole(LAYOUT)), LAYOUT, PLAN)
    sizes = [link.stream(fragment).elements for fragment in range(len(PLAN))]
    assert sum(sizes) == LAYOUT.elements
    assert link.stream(0) is link.stream(0)
