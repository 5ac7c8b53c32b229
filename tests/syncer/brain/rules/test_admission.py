"""Which offers are taken, in time or late, and which not; judging one changes nothing."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from swift_diloco.core.formats import tape_lines
from swift_diloco.core.formats.chunks import Encoding
from swift_diloco.core.formats.messages import (
    Outcome,
    PushAnswer,
    ValueName,
    Welcome,
)
from syncer.events import (
    OpenUpload,
    Received,
    Send,
    UploadCompleted,
    WriteTape,
)
from tests.syncer.desk import Desk, control, initial_names, messages, pushed


def refuse(desk: Desk, island: int, t: int, **changes: Any) -> tuple[str, bool]:
    """The reason of a refused offer and whether it says that the anchor is held; asserts that nothing else happens."""
    offer = desk.offer_of(island, t, **changes)
    effects = desk.take(Received(control(island), offer))
    assert len(effects) == 2, effects
    sent, line = effects
    assert isinstance(sent, Send) and isinstance(sent.message, PushAnswer), sent
    answer = sent.message
    assert answer.outcome is Outcome.REFUSED and answer.push == offer.push
    fragment = offer.anchor.fragment
    refused = tape_lines.Refused(island=island, push=offer.push, fragment=fragment, reason=answer.reason)
    assert line == WriteTape(refused)
    return answer.reason, answer.anchor_held


@pytest.mark.parametrize(
    ("t", "changes", "reason"),
    [
        (9, {}, "outer step 9 is not open for fragment 0"),
        (1, {"anchor": ValueName(1, 0, "digest-1-0")}, "outer step 1 is not open for fragment 1"),
        (1, {"anchor": ValueName(-1, 0, "")}, "outer step 1 is not open for fragment -1"),
        (1, {"attempt": 2}, "attempt 2 of outer step 1 is over"),
        (1, {"anchor": ValueName(0, 0, "x")}, "the anchor (version 0) is forked; install the present one first"),
        (1, {"anchor": ValueName(0, 3, "x")}, "the anchor (version 3) is newer; install the present one first"),
        (1, {"push": "k3.1"}, "the push id must begin with the generation and a dot, and have at most 256 characters"),
        (1, {"steps": -1}, "-1 steps and 20 tokens; expected 0 to 9007199254740992"),
        (1, {"tokens": 2**60}, f"2 steps and {2**60} tokens; expected 0 to 9007199254740992"),
    ],
)
def test_an_offer_is_refused_with_its_reason(t: int, changes: dict[str, Any], reason: str) -> None:
    desk = Desk()
    desk.ready(2)
    assert refuse(desk, 0, t, **changes) == (reason, False)


def test_an_island_that_joined_after_the_launch_is_no_member_of_the_round() -> None:
    desk = Desk()
    desk.ready(1)
    desk.join(1)
    assert refuse(desk, 1, 1)[0] == "island 1 was no member when outer step 1 was launched"


def test_a_second_answer_of_an_island_is_refused() -> None:
    desk = Desk()
    desk.ready(2)
    desk.offer(0, 1)
    assert refuse(desk, 0, 1) == ("outer step 1 has an answer of island 0 already", False)


def test_a_push_id_in_use_is_refused_also_when_its_upload_is_complete() -> None:
    desk = Desk(quorum=2)
    desk.ready(2)
    desk.push(0, 1, push="k1.same")
    assert refuse(desk, 0, 2, push="k1.same")[0] == "the push id is in use"


@pytest.mark.parametrize(("allowed", "taken"), [(0, False), (1, True)])
def test_lag_is_counted_in_versions_of_the_fragment(allowed: int, taken: bool) -> None:
    desk = Desk(max_base_lag=allowed)
    desk.ready(2)
    desk.push(0, 1)
    desk.merged(1)
    old = initial_names(2)[0]
    if taken:
        offer = desk.offer_of(1, 3, anchor=old)
        assert desk.take(Received(control(1), offer)) == [
            pushed(1, offer),
            OpenUpload(offer.push, "k3", 0, Encoding.F32),
        ]
    else:
        assert refuse(desk, 1, 3, anchor=old)[0] == "the anchor is 1 versions behind; at most 0 are allowed"


def test_a_merged_anchor_is_held_for_ever() -> None:
    desk = Desk(max_base_lag=5)
    desk.ready(2)
    desk.push(0, 1)
    desk.merged(1)
    held = ("a delta from this anchor (version 0) is held already", True)
    assert refuse(desk, 0, 3, anchor=initial_names(2)[0]) == held
    desk.gone(0)
    welcome = messages(desk.join(0, life=2))[0]
    assert isinstance(welcome, Welcome) and welcome.held == (initial_names(2)[0],)


def everything(desk: Desk) -> bytes:
    """All that the brain remembers."""
    state = {name: each for name, each in vars(desk.brain._state).items() if name != "tokens"}
    return pickle.dumps(state)


@pytest.mark.parametrize(
    ("settings", "t", "changes"),
    [
        ({}, 1, {}),
        ({}, 1, {"steps": 0, "tokens": 0}),
        ({}, 1, {"anchor": ValueName(0, 3, "x")}),
        ({}, 9, {}),
        ({"carried_bytes_max": 20}, 1, {"anchor": initial_names(2)[0]}),
        ({"carried_bytes_max": 10}, 1, {"anchor": initial_names(2)[0]}),
    ],
)
def test_judging_an_offer_changes_nothing(settings: dict[str, Any], t: int, changes: dict[str, Any]) -> None:
    desk = Desk(quorum=1, **settings)
    desk.ready(3)
    late = desk.offer(2, 1)
    desk.push(0, 1)
    desk.at(5.0)
    desk.merged(1)
    desk.take(UploadCompleted(late, 16))
    member = desk.brain._state.roster.members[1]
    before, wanted = everything(desk), list(desk.brain._state.effects)
    desk.brain._admission.judge(member, desk.offer_of(1, t, **changes))
    assert everything(desk) == before and desk.brain._state.effects == wanted
