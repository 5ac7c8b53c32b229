"""Decisions about a round as tables, and the bookkeeping under every order of what may happen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_diloco.core.formats.messages import ValueName
from syncer.brain.memory.round import FOLLOWS, UPLOAD_IDLE_S, Action, Answer, Patience, Round, Stage, Verdict, judge

ANCHOR = ValueName(0, 0, "d")
PATIENCE = Patience(quorum_timeout_s=900.0, upload_grace_s=60.0, enough=True)


def answer(island: int, progressed_at: float = 0.0) -> Answer:
    return Answer(
        push=f"g{island}.1",
        island=island,
        generation=f"g{island}",
        anchor=ANCHOR,
        lag=0,
        steps=2,
        tokens=4,
        capture_step=2,
        weight=8.0,
        progressed_at=progressed_at,
    )


def gathering(members: int, complete: int = 0, arriving: int = 0) -> Round:
    """A round at time 0 whose first islands answered and whose next ones are uploading."""
    made = Round(t=1, fragment=0, launched_at=0.0)
    made.capture((island, f"g{island}") for island in range(members))
    for island in range(complete + arriving):
        made.admit(answer(island))
        if island < complete:
            made.finish(island, 16)
    return made


def decide(made: Round, k: int, now: float, patience: Patience = PATIENCE) -> Verdict:
    made.note(k, now)
    return judge(made, k, patience, now)


def test_round_closes_when_all_members_have_answered() -> None:
    assert decide(gathering(2, complete=2), 1, 5.0) == Verdict(Action.CLOSE, "all islands have answered")


def test_an_island_that_cannot_answer_before_a_new_value_counts_as_having_answered() -> None:
    made = gathering(3, complete=1)
    made.mute = frozenset({1})
    assert decide(made, 2, 5.0) == Verdict(Action.CLOSE, "the grace after the quorum is over")
    assert decide(made, 3, 5.0) == Verdict(Action.WAIT, "2 of 3 answers")
    made.owe(2)
    assert decide(made, 3, 6.0).due == 906.0
    alone = gathering(1)
    alone.mute, alone.grace_s = frozenset({0}), 100.0
    assert decide(alone, 1, 6.0) == Verdict(Action.CLOSE, "all islands have answered")


def test_round_waits_below_the_quorum_without_a_time() -> None:
    assert decide(gathering(3, complete=1), 2, 5.0) == Verdict(Action.WAIT, "1 of 2 answers")


def test_round_waits_for_grace_after_quorum() -> None:
    made = gathering(3, complete=2)
    made.grace_s = 1.5
    assert decide(made, 2, 10.0) == Verdict(Action.WAIT, "grace after the quorum", 11.5)
    assert decide(made, 2, 11.4).action is Action.WAIT
    assert decide(made, 2, 11.5) == Verdict(Action.CLOSE, "the grace after the quorum is over")


def test_round_waits_for_uploads_that_make_progress_but_not_for_ever() -> None:
    made = gathering(3, complete=2, arriving=1)
    assert decide(made, 2, 1.0) == Verdict(Action.WAIT, "uploads that make progress", UPLOAD_IDLE_S)
    made.answers[2].progressed_at = 58.0
    assert decide(made, 2, 59.0) == Verdict(Action.WAIT, "uploads that make progress", 61.0)
    made.answers[2].progressed_at = 60.9
    assert decide(made, 2, 61.0).action is Action.CLOSE


def test_round_does_not_wait_for_an_upload_that_stands_still() -> None:
    made = gathering(3, complete=2, arriving=1)
    made.note(2, 1.0)
    assert decide(made, 2, UPLOAD_IDLE_S).action is Action.CLOSE


def test_quorum_clock_starts_when_k_members_owe_not_at_launch() -> None:
    made = gathering(3, complete=1)
    assert decide(made, 2, 500.0).due is None
    made.owe(1)
    assert decide(made, 2, 600.0) == Verdict(Action.WAIT, "1 of 2 answers", 1500.0)
    assert decide(made, 2, 1500.0) == Verdict(Action.RESTART, "only 1 of 2 answers within 900 s")


def test_quorum_clock_stops_when_too_few_owe() -> None:
    made = gathering(3, complete=1)
    made.owe(1)
    made.note(2, 0.0)
    made.leave(1, "g1")
    assert decide(made, 2, 1000.0) == Verdict(Action.WAIT, "1 of 2 answers")


def test_round_that_cannot_reach_its_quorum_begins_again_only_with_enough_members() -> None:
    made = gathering(2, complete=1)
    made.leave(1, "g1")
    reason = "only 1 of its islands are left and 2 answers are needed"
    assert decide(made, 2, 1.0) == Verdict(Action.RESTART, reason)
    assert decide(made, 2, 1.0, Patience(900.0, 60.0, enough=False)) == Verdict(Action.WAIT, reason)


def test_a_death_does_not_complete_a_round_below_its_quorum() -> None:
    made = gathering(2, complete=1)
    made.leave(1, "g1")
    assert not made.pending
    assert decide(made, 2, 1.0, Patience(900.0, 60.0, enough=False)).action is Action.WAIT


def test_a_complete_answer_outlives_its_generation() -> None:
    made = gathering(2, complete=1)
    made.leave(0, "g0")
    made.validate()
    assert (made.present, made.complete, made.departed) == (2, 1, 1)
    assert not made.fill(0, "g0b")


def test_a_vacated_slot_goes_to_the_next_generation_once() -> None:
    made = gathering(2)
    made.leave(0, "g0")
    assert made.present == 1
    assert made.fill(0, "g0b") and not made.fill(0, "g0c")
    assert made.members == {1: "g1", 0: "g0b"} and made.present == 2
    made.validate()


def test_an_older_generation_cannot_leave_for_the_present_one() -> None:
    made = gathering(1)
    made.leave(0, "someone else")
    assert made.members == {0: "g0"}


@given(st.lists(st.tuples(st.sampled_from("oafwlr"), st.integers(0, 3)), max_size=40), st.integers(1, 4))
def test_bookkeeping_holds_in_every_order(steps: list[tuple[str, int]], k: int) -> None:
    made = gathering(4)
    for now, (what, island) in enumerate(steps):
        arriving = island in made.answers and not made.answers[island].complete
        if what == "o":
            made.owe(island)
        elif what == "a" and island in made.pending and island not in made.answers:
            made.admit(answer(island))
        elif what == "f" and arriving:
            made.finish(island, 1)
        elif what == "w" and arriving:
            made.withdraw(island)
        elif what == "l":
            if arriving:
                made.withdraw(island)
            made.leave(island, f"g{island}")
        elif what == "r":
            made.fill(island, f"g{island}")
        made.validate()
        verdict = decide(made, k, float(now))
        assert verdict.action is not Action.CLOSE or made.complete >= k


@pytest.mark.parametrize("k", [1, 2, 3])
def test_no_verdict_closes_with_fewer_answers_than_k(k: int) -> None:
    for complete in range(k):
        for now in (0.0, 1e3, 1e6):
            assert decide(gathering(3, complete=complete), k, now).action is not Action.CLOSE


@pytest.mark.parametrize("before", list(Stage))
@pytest.mark.parametrize("after", list(Stage))
def test_a_round_enters_only_a_stage_that_may_follow(before: Stage, after: Stage) -> None:
    made = gathering(members=1)
    made.stage = before
    if after in FOLLOWS[before]:
        made.enter(after)
        assert made.stage is after
    else:
        with pytest.raises(AssertionError, match=f"outer step 1: {after.value} cannot follow {before.value}"):
            made.enter(after)


def test_every_stage_has_its_place_in_the_table_and_the_last_one_leads_nowhere() -> None:
    assert set(FOLLOWS) == set(Stage)
    assert [stage for stage in Stage if not FOLLOWS[stage]] == [Stage.READY]
