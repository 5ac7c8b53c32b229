"""What the checkers are told of a world."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats.tape_lines import Commit, Init, Refused, Resumed, TapeLine
from swift_diloco.simulate.worlds.truth import History, Merged


def merged(t: int) -> Merged:
    return Merged(t, 0, f"push-{t}", frozenset({(0, "life", t)}))


def test_what_came_after_the_checkpoint_is_in_no_value_any_more() -> None:
    history = History(merged=[merged(1), merged(2), merged(3)])
    history.rewound(2)
    assert history.merged == [merged(1), merged(2)]


def commit(t: int) -> Commit:
    return Commit(
        t=t, fragment=0, version=t, digest="d", void=False, contributions=(), offenders=(), quorum_s=0.0, round_s=0.0,
        merge_s=0.0,
    )  # fmt: skip


INIT = Init(run="run", fragments=(), layout="f")
TAPE: list[TapeLine] = [
    INIT,
    commit(1),
    commit(2),
    Refused(island=0, push=None, fragment=None, reason="no"),
    Resumed(t=1, run="run", versions=(1,), carried=()),
    commit(2),
    commit(3),
]


@pytest.mark.parametrize(
    ("tape", "durable", "promised"),
    [([], 4, 4), (TAPE[:3], 0, 2), (TAPE[:5], 0, 1), (TAPE, 0, 3), (TAPE, 5, 5), ([*TAPE, INIT], 0, 0)],
)
def test_syncer_that_ended_well_promises_all_that_it_committed_since_it_resumed(
    tape: list[TapeLine], durable: int, promised: int
) -> None:
    well, badly = (History(tape=list(tape), durable=durable) for _ in range(2))
    well.stopped(well=True)
    badly.stopped(well=False)
    assert (well.durable, badly.durable) == (promised, durable)


def test_lines_of_one_kind_come_in_their_order() -> None:
    assert [line.t for line in History(tape=TAPE).lines(Commit)] == [1, 2, 2, 3]
