"""The virtual clock and the network."""

from __future__ import annotations

from swift_diloco.core.formats.messages import IslandMessage, Leave, SyncerMessage
from swift_diloco.simulate.worlds.world import SENT_KEPT, Link, World


def message(text: str) -> Leave:
    return Leave("s", "g", text)


def linked(world: World, island: int = 0) -> tuple[Link, list[tuple[float, IslandMessage]]]:
    heard: list[tuple[float, IslandMessage]] = []
    link = Link(f"c{island}", island, -1, lambda peer, sent: heard.append((world.now, sent)), _nobody)
    return link, heard


def _nobody(message: SyncerMessage) -> None:
    raise AssertionError("nothing is sent down here")


def test_a_link_delivers_in_order_and_each_message_once() -> None:
    world = World(1, delay_s=5.0, transfer_s=1.0)
    link, heard = linked(world)
    for i in range(20):
        world.send_up(link, message(str(i)))
    world.run(lambda: False, 100.0)
    assert [sent for _, sent in heard] == [message(str(i)) for i in range(20)]


def test_two_links_overtake_each_other() -> None:
    world = World(1, delay_s=5.0, transfer_s=1.0)
    heard: list[str] = []
    links = [Link(str(i), i, -1, lambda peer, sent: heard.append(peer), _nobody) for i in range(20)]
    for link in links:
        world.send_up(link, message(""))
    world.run(lambda: False, 100.0)
    assert sorted(heard) == sorted(map(str, range(20))) and heard != list(map(str, range(20)))


def test_nothing_comes_over_a_closed_link() -> None:
    world = World(1, delay_s=5.0, transfer_s=1.0)
    link, heard = linked(world)
    world.send_up(link, message("a"))
    link.closed = True
    world.run(lambda: False, 100.0)
    assert heard == []


def test_a_partition_holds_messages_until_it_is_over_and_hits_one_island() -> None:
    world = World(1, delay_s=0.5, transfer_s=1.0)
    parted, late = linked(world, 0)
    other, early = linked(world, 1)
    world.part(0, 30.0)
    world.send_up(parted, message("a"))
    world.send_up(other, message("b"))
    world.run(lambda: False, 100.0)
    assert not world.now < 30.0 <= late[0][0] <= 30.5 and early[0][0] <= 0.5


def test_a_link_remembers_what_it_carried_last() -> None:
    world = World(1, delay_s=0.5, transfer_s=1.0)
    link, _ = linked(world)
    for i in range(10):
        world.send_up(link, message(str(i)))
    assert link.sent == [message(str(i)) for i in range(10 - SENT_KEPT, 10)]


def test_a_clogged_link_is_slow_for_its_time() -> None:
    world = World(1, delay_s=0.5, transfer_s=1.0)
    world.clog(0, 1, 10.0)
    assert world.slowness(0, 1) > 1.0 and world.slowness(0, 0) == world.slowness(1, 1) == 1.0
    world.now = 10.0
    assert world.slowness(0, 1) == 1.0


def test_the_clock_goes_from_event_to_event_and_stops_at_the_limit() -> None:
    world = World(1, delay_s=0.5, transfer_s=1.0)
    seen: list[float] = []
    for seconds in (3.0, 1.0, 2.0, 9.0):
        world.after(seconds, lambda: seen.append(world.now))
    assert not world.run(lambda: False, 5.0)
    assert seen == [1.0, 2.0, 3.0] and world.now == 3.0
    world.run_to(7.0)
    assert seen == [1.0, 2.0, 3.0] and world.now == 7.0
    world.run_to(10.0)
    assert seen == [1.0, 2.0, 3.0, 9.0] and world.now == 10.0
