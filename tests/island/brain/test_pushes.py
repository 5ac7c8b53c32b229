"""Which pulls are open, and when and with what each is answered: whole lists of effects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swift_diloco.core.formats.messages import (
    Contract,
    Dropped,
    Outcome,
    Pull,
    PullClosed,
    PushAnswer,
    PushOffer,
    ValueName,
)
from swift_diloco.island.brain.anchors import Anchor
from swift_diloco.island.brain.holdings import Holdings
from swift_diloco.island.brain.pushes import Offerer, Pushes
from swift_diloco.island.events import Capture, Effect, ForgetUpload, Log, Tell

NAMES = (ValueName(0, 1, "a1"), ValueName(1, 2, "b2"))
H = 3
ISLAND = Offerer("s", "g", Contract(sync_every_steps=H), step=40, done=False)
DONE = replace(ISLAND, done=True)


class Asked:
    """Two fragments with anchors, `steps` steps ago, and what is asked of them."""

    def __init__(self, steps: int = H) -> None:
        self.holdings = Holdings()
        self.holdings.anchors = [Anchor(name, steps, 10 * steps) for name in NAMES]
        self.pushes = Pushes(self.holdings)

    def pull(self, fragment: int = 0, t: int = 1, attempt: int = 1) -> Asked:
        self.pushes.pulled(Pull("s", "g", t, fragment, attempt))
        return self

    def answer(self, island: Offerer = ISLAND) -> list[Effect]:
        effects = self.pushes.answer(island)
        self.holdings.validate()
        return effects


def offer(number: int, fragment: int = 0, steps: int = H, t: int = 1, attempt: int = 1) -> Tell:
    push = f"g.{number}"
    return Tell(PushOffer("s", "g", push, t, attempt, NAMES[fragment], steps, 10 * steps, capture_step=40))


def test_without_a_pull_nothing_is_offered() -> None:
    assert Asked().answer() == []


def test_a_pull_is_answered_once() -> None:
    asked = Asked().pull()
    assert asked.answer() == [Capture("g.1", 0, H), offer(1)]
    assert asked.answer() == []


def test_pulls_are_answered_in_the_order_of_their_outer_steps() -> None:
    asked = Asked().pull(fragment=0, t=4).pull(fragment=1, t=3)
    assert asked.answer() == [Capture("g.1", 1, H), offer(1, 1, t=3), Capture("g.2", 0, H), offer(2, 0, t=4)]


def test_the_newest_pull_of_a_fragment_is_the_one_that_is_answered() -> None:
    assert Asked().pull(t=1, attempt=1).pull(t=1, attempt=2).answer() == [Capture("g.1", 0, H), offer(1, attempt=2)]


@pytest.mark.parametrize(("island", "steps"), [(ISLAND, H - 1), (ISLAND, 0)])
def test_a_pull_below_the_h_gate_stays_open_until_there_are_enough_steps(island: Offerer, steps: int) -> None:
    asked = Asked(steps).pull()
    assert asked.answer(island) == []
    for _ in range(H - steps):
        asked.holdings.trained(10)
    assert asked.answer(island) == [Capture("g.1", 0, H), offer(1)]


def test_a_done_island_answers_below_the_gate_and_with_nothing_where_it_did_nothing() -> None:
    assert Asked(1).pull().answer(DONE) == [Capture("g.1", 0, 1), offer(1, steps=1)]
    assert Asked(0).pull().answer(DONE) == [offer(1, steps=0)]


def test_a_capture_is_kept_where_installs_carry_progress() -> None:
    carrying = replace(ISLAND, contract=Contract(sync_every_steps=H, align="carry"))
    assert Asked().pull().answer(carrying) == [Capture("g.1", 0, H, keep=True), offer(1)]


def test_a_spent_anchor_is_not_answered_from_and_the_pull_stays_open() -> None:
    asked = Asked().pull()
    asked.answer()
    asked.pull(t=2)
    assert asked.answer() == []
    assert asked.pushes.dropped(Dropped("s", "g", "g.1", "attempt over"))[0] == ForgetUpload("g.1", arrived=False)
    assert asked.answer() == [Capture("g.2", 0, H), offer(2, t=2)]


def test_a_fragment_without_an_anchor_or_with_a_value_to_install_is_not_answered_from() -> None:
    asked = Asked().pull(0).pull(1)
    asked.holdings.anchors[0] = Anchor()
    asked.holdings.pending[1] = ValueName(1, 3, "b3")
    assert asked.answer(DONE) == []


@pytest.mark.parametrize(("closed", "answered"), [(1, False), (2, False), (0, True)])
def test_a_pull_is_closed_by_its_own_round_or_a_later_one(closed: int, answered: bool) -> None:
    asked = Asked().pull(t=1)
    asked.pushes.closed(PullClosed("s", "g", closed, 0))
    asked.pushes.closed(PullClosed("s", "g", 9, 1))
    assert bool(asked.answer()) is answered


def test_a_generation_that_ends_leaves_no_pull() -> None:
    asked = Asked().pull(0).pull(1)
    asked.pushes.void()
    assert asked.answer() == []


ANSWERS = {
    (Outcome.HELD, False): ([ForgetUpload("g.1", arrived=True)], True),
    (Outcome.CARRIED, False): ([ForgetUpload("g.1", arrived=True)], True),
    (Outcome.REFUSED, False): (
        [ForgetUpload("g.1", arrived=False), Log("info", "push g.1 was not taken: why")],
        False,
    ),
    (Outcome.REFUSED, True): ([ForgetUpload("g.1", arrived=False), Log("info", "push g.1 was not taken: why")], True),
}


@pytest.mark.parametrize(("outcome", "anchor_held"), ANSWERS)
def test_an_answer_frees_the_upload_and_only_a_refusal_of_the_push_itself_the_anchor(
    outcome: Outcome, anchor_held: bool
) -> None:
    asked = Asked().pull()
    asked.answer()
    effects, spent = ANSWERS[outcome, anchor_held]
    assert asked.pushes.answered(PushAnswer("s", "g", "g.1", outcome, "why", anchor_held)) == effects
    anchor = asked.holdings.anchors[0]
    assert (anchor.settled, anchor.spent) == (True, spent)


def test_an_answer_to_another_push_leaves_the_anchors_as_they_are() -> None:
    asked = Asked().pull()
    asked.answer()
    answer = PushAnswer("s", "g", "g.0", Outcome.REFUSED, "why")
    assert asked.pushes.answered(answer)[0] == ForgetUpload("g.0", arrived=False)
    assert asked.holdings.anchors[0].spent and not asked.holdings.anchors[0].settled


def test_a_dropped_push_is_told_with_its_steps_and_an_empty_one_is_not() -> None:
    asked, empty = Asked().pull(), Asked(0).pull()
    asked.answer()
    empty.answer(DONE)
    dropped = Dropped("s", "g", "g.1", "void")
    forget = ForgetUpload("g.1", arrived=False)
    assert asked.pushes.dropped(dropped) == [forget, Log("info", f"push g.1 ({H} steps) was dropped: void")]
    assert empty.pushes.dropped(dropped) == [forget]
    assert asked.holdings.spent() == empty.holdings.spent() == frozenset()


def test_a_dropped_push_of_an_earlier_life_frees_the_anchor_it_names_and_no_other() -> None:
    asked = Asked()
    for anchor in asked.holdings.anchors:
        anchor.settle(held=True)
    assert asked.pushes.dropped(Dropped("s", "g", "old.7", "void", NAMES[1])) == [ForgetUpload("old.7", arrived=False)]
    assert asked.holdings.spent() == {0}
