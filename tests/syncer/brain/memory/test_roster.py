"""The roster keeps one generation per island and one speaker per connection."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats.messages import Hello
from swift_diloco.core.layout.boxes import Box
from syncer.brain.memory.roster import FOLLOWS, Presence, Roster

BOX = Box(0, (0,), (4,))


def hello(island: int) -> Hello:
    return Hello(island, f"nonce-{island}", "f", "host", 7, "", step=3, ranks=2)


def test_a_generation_becomes_a_member_and_ends_without_a_trace() -> None:
    roster = Roster()
    member = roster.welcome(hello(4), "c4", ("g4", "secret"), now=1.0)
    roster.bind_rank(member, 0, "b0", (BOX,))
    roster.validate()
    assert not roster.members
    roster.admit(member, fragments=2)
    assert member.counts_from == [3, 3]
    roster.finish(member, Presence.DONE)
    roster.finish(member, Presence.SAVED)
    assert roster.done == 1
    roster.validate()
    roster.end(member)
    roster.validate()
    assert not (roster.generations or roster.islands or roster.peers or roster.rank_peers or roster.members)
    assert roster.done == 0


def test_a_second_generation_of_an_island_is_our_bug() -> None:
    roster = Roster()
    roster.welcome(hello(4), "c4", ("g4", "secret"), now=1.0)
    with pytest.raises(AssertionError):
        roster.welcome(hello(4), "c5", ("g5", "secret"), now=1.0)


def test_a_rank_that_dials_again_replaces_its_link() -> None:
    roster = Roster()
    member = roster.welcome(hello(0), "c", ("g", "secret"), now=0.0)
    roster.bind_rank(member, 1, "b1", (BOX,))
    roster.bind_rank(member, 1, "b2", (BOX,))
    roster.validate()
    assert list(roster.rank_peers) == ["b2"]
    roster.unbind_rank("b2")
    roster.validate()
    assert member.boxes == {1: (BOX,)} and not member.rank_peers


def test_a_connection_speaks_for_one_rank() -> None:
    roster = Roster()
    member = roster.welcome(hello(0), "c", ("g", "secret"), now=0.0)
    roster.bind_rank(member, 0, "b", (BOX,))
    roster.bind_rank(member, 1, "b", (BOX,))
    roster.validate()
    assert roster.rank_peers["b"] == (member, 1)


def test_members_are_listed_in_island_order() -> None:
    roster = Roster()
    for island in (2, 0, 1):
        roster.admit(roster.welcome(hello(island), f"c{island}", (f"g{island}", ""), now=0.0), fragments=1)
    assert [member.island for member in roster.ordered()] == [0, 1, 2]


def test_every_presence_has_its_place_in_the_table() -> None:
    assert set(FOLLOWS) == set(Presence)
    assert [presence for presence in Presence if not FOLLOWS[presence]] == [Presence.SAVED]


@pytest.mark.parametrize("before", list(Presence))
@pytest.mark.parametrize("after", [Presence.DONE, Presence.SAVED])
def test_a_generation_goes_on_only_to_what_may_follow(before: Presence, after: Presence) -> None:
    roster = Roster()
    member = roster.welcome(hello(4), "c4", ("g4", "secret"), now=1.0)
    if before is not Presence.JOINING:
        roster.admit(member, 1)
    if before in (Presence.DONE, Presence.SAVED):
        roster.finish(member, before)
    if after in FOLLOWS[before]:
        roster.finish(member, after)
        assert member.presence is after and roster.done == 1
    else:
        with pytest.raises(AssertionError, match=f"{after.value} cannot follow {before.value}"):
            roster.finish(member, after)
    roster.validate()
