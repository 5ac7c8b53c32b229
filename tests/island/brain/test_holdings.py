"""The resume table and the redial table, every row with every spent flag, and the counters that survive.

`RESUME` and `REDIAL` below are the tables as the design has them; each row says how the first value of a fragment is
aligned, and what becomes of the counters. The other fragment is always the same value, so that rows cannot leak.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from swift_diloco.core.formats.messages import Contract, ValueName, Welcome
from swift_diloco.core.layout.fragments import FragmentPlan
from swift_diloco.island.brain.anchors import Anchor
from swift_diloco.island.brain.holdings import Holdings
from swift_diloco.island.events import Align, Bind, Effect, Install, Log, NameAnchor
from swift_diloco.island.remembered import AnchorRecord, Remembered

PLAN = FragmentPlan(((0,), (1,)))
OTHER = ValueName(1, 3, "other")
OLD = ValueName(0, 4, "old")
SEEN = {"same": OLD, "behind": ValueName(0, 7, "new"), "forked": ValueName(0, 2, "of an older checkpoint")}
"""What the syncer has, seen from an anchor that is OLD: the very value, a later one, or one of another history."""
STEPS, TOKENS = 5, 50
KEPT, RESET = (STEPS, TOKENS), (0, 0)


def welcome(
    value: ValueName | None, *, held: bool = False, run: str = "run", plan: FragmentPlan = PLAN, floor: int = 0
) -> Welcome:
    return Welcome(
        session="s",
        generation="g",
        nonce="n",
        token="t",
        run=run,
        contract=Contract(),
        plan=plan,
        values=() if value is None else (value, OTHER),
        held=(OLD,) if held else (),
        held_floor=(floor, 0),
    )


def remembered(*, with_values: bool, digest: str = "old") -> Remembered:
    first = AnchorRecord(OLD.version, digest, STEPS, TOKENS, spent=True, push="an earlier life's")
    return Remembered("run", PLAN, (first, AnchorRecord(OTHER.version, OTHER.digest, 1, 1)), with_values, "f32")


def counters(anchor: Anchor) -> tuple[int, int]:
    return anchor.steps, anchor.tokens


@dataclass(frozen=True)
class Row:
    """What is expected. No download: the anchor's values are here, and only get their name again."""

    align: Align | None
    counted: tuple[int, int]
    spent: bool = False
    downloads: bool = True
    told: str = ""


def check(holdings: Holdings, effects: list[Effect], value: ValueName, row: Row, contract: Contract) -> None:
    """Follow the first value of fragment 0 to its install."""
    holdings.validate()
    assert (value in holdings.wanted()) is row.downloads
    assert (value in holdings.valued()) is not row.downloads
    assert not any(isinstance(effect, NameAnchor) for effect in effects), "what is held is told with the introduction"
    if row.downloads:
        assert row.align is not None
        alpha = contract.alpha if row.align is Align.BLEND else 0.0
        assert holdings.install(value, contract) == Install(value, row.align, alpha)
    anchor = holdings.anchors[0]
    assert (anchor.name, counters(anchor), anchor.spent) == (value, row.counted, row.spent)
    assert holdings.wanted() == tuple(name for name in (OTHER,) if name in holdings.pending.values())
    holdings.validate()


# -- resume ------------------------------------------------------------------------------------------------------------

RESUME = {
    # seen, held, anchors saved
    ("same", False, True): Row(None, KEPT, downloads=False),
    ("same", False, False): Row(Align.KEEP, KEPT),
    ("same", True, True): Row(None, KEPT, spent=True, downloads=False),
    ("same", True, False): Row(Align.KEEP, KEPT, spent=True),
    ("behind", False, True): Row(Align.SHIFT, KEPT),
    ("behind", False, False): Row(Align.OVERWRITE, RESET),
    ("behind", True, True): Row(Align.OVERWRITE, RESET),
    ("behind", True, False): Row(Align.OVERWRITE, RESET),
    ("forked", False, True): Row(Align.SHIFT, KEPT),
    ("forked", False, False): Row(Align.OVERWRITE, RESET),
}
"""A syncer holds nothing from an anchor that is not in its history, so the table's "any" of a forked one is "no"."""


@pytest.mark.parametrize(("seen", "held", "saved"), RESUME)
@pytest.mark.parametrize("align", ["overwrite", "blend", "carry"])
def test_first_value_after_a_resume_is_aligned_as_the_table_says(
    seen: str, held: bool, saved: bool, align: str
) -> None:
    holdings = Holdings(remembered(with_values=saved))
    effects = holdings.welcomed(welcome(SEEN[seen], held=held))
    assert effects[0] == Bind(PLAN)
    check(holdings, effects, SEEN[seen], RESUME[seen, held, saved], Contract(align=align, alpha=0.5))


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("held", [False, True])
def test_without_a_record_every_first_value_overwrites(seen: str, held: bool) -> None:
    holdings = Holdings()
    effects = holdings.welcomed(welcome(SEEN[seen], held=held))
    check(holdings, effects, SEEN[seen], Row(Align.OVERWRITE, RESET), Contract(align="blend", alpha=0.5))


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(
    ("difference", "reason"),
    [
        ({"run": "elsewhere"}, "the record is of run elsewhere, the syncer's run is run"),
        ({"plan": FragmentPlan(((1,), (0,)))}, "the record is of other fragments than the syncer's"),
        ({"publish_encoding": "bf16"}, "the record's anchors are of values published as bf16, the syncer's are f32"),
    ],
)
def test_record_that_does_not_belong_here_is_a_cold_start_and_told_in_one_line(
    seen: str, held: bool, saved: bool, difference: dict[str, Any], reason: str
) -> None:
    record = replace(remembered(with_values=saved), **difference)
    holdings = Holdings(record)
    effects = holdings.welcomed(welcome(SEEN[seen], held=held))
    told = Log("warning", f"cold start, local values will be overwritten: {reason}")
    assert effects == [Bind(PLAN), told]
    check(holdings, effects, SEEN[seen], Row(Align.OVERWRITE, RESET), Contract())


def test_fields_that_a_record_written_by_hand_lacks_are_not_compared() -> None:
    holdings = Holdings(replace(remembered(with_values=True, digest=""), run="", publish_encoding=""))
    effects = holdings.welcomed(welcome(OLD))
    check(holdings, effects, OLD, Row(None, KEPT, downloads=False), Contract())


def test_anchor_that_the_syncer_has_forgotten_counts_as_held() -> None:
    holdings = Holdings(remembered(with_values=True))
    effects = holdings.welcomed(welcome(SEEN["behind"], floor=OLD.version + 1))
    check(holdings, effects, SEEN["behind"], Row(Align.OVERWRITE, RESET), Contract())


def test_anchor_at_the_edge_of_what_the_syncer_remembers_is_not_held() -> None:
    holdings = Holdings(remembered(with_values=True))
    effects = holdings.welcomed(welcome(SEEN["behind"], floor=OLD.version))
    check(holdings, effects, SEEN["behind"], Row(Align.SHIFT, KEPT), Contract())


def test_anchor_claimed_of_a_version_the_syncer_never_had_is_forked() -> None:
    holdings = Holdings(remembered(with_values=False))
    early = ValueName(0, 1, "young syncer")
    effects = holdings.welcomed(welcome(early))
    check(holdings, effects, early, Row(Align.OVERWRITE, RESET), Contract())


def test_fragment_that_a_record_does_not_name_is_overwritten() -> None:
    holdings = Holdings(Remembered("run", PLAN, (None, AnchorRecord(3, "other")), with_values=True))
    effects = holdings.welcomed(welcome(OLD))
    check(holdings, effects, OLD, Row(Align.OVERWRITE, RESET), Contract(align="carry"))


def test_newer_value_that_overtakes_the_download_of_a_kept_anchor_is_met_anew() -> None:
    holdings = Holdings(remembered(with_values=False))
    holdings.welcomed(welcome(OLD))
    newer = SEEN["behind"]
    assert holdings.published(newer, "run") == []
    check(holdings, [], newer, Row(Align.OVERWRITE, RESET), Contract())


def test_newer_value_that_overtakes_a_shift_is_shifted_onto() -> None:
    holdings = Holdings(remembered(with_values=True))
    holdings.welcomed(welcome(SEEN["behind"]))
    newer = ValueName(0, 9, "newest")
    assert holdings.published(newer, "run") == []
    check(holdings, [], newer, Row(Align.SHIFT, KEPT), Contract())


def test_second_value_after_a_resume_is_an_ordinary_install() -> None:
    holdings = Holdings(remembered(with_values=True))
    holdings.welcomed(welcome(OLD))
    newer = SEEN["behind"]
    holdings.published(newer, "run")
    assert holdings.install(newer, Contract(align="blend", alpha=0.25)) == Install(newer, Align.BLEND, 0.25)
    assert counters(holdings.anchors[0]) == RESET


def test_resumed_island_without_a_state_at_the_syncer_keeps_what_it_has() -> None:
    holdings = Holdings(remembered(with_values=True))
    assert holdings.welcomed(welcome(None, run="")) == [Bind(PLAN)]
    assert (holdings.missing, holdings.complete, holdings.wanted()) == (2, False, ())
    assert counters(holdings.anchors[0]) == KEPT


# -- redial ------------------------------------------------------------------------------------------------------------


def running(*, pushed: bool = False, empty: bool = False) -> Holdings:
    """An island that was given OLD and trained; with a push of unknown fate, after which it trained on (1, 1)."""
    holdings = Holdings()
    holdings.welcomed(welcome(OLD))
    for name in holdings.wanted():
        holdings.install(name, Contract())
    if pushed and not empty:
        for _ in range(STEPS - 1):
            holdings.trained(TOKENS // STEPS)
        holdings.anchors[0].offered("p")
        holdings.trained(TOKENS // STEPS)
    elif pushed:
        holdings.anchors[0].offered("p")
        for _ in range(STEPS):
            holdings.trained(TOKENS // STEPS)
    else:
        for _ in range(STEPS):
            holdings.trained(TOKENS // STEPS)
    holdings.lost()
    return holdings


ALIGNS = ("overwrite", "blend", "carry")
SINCE_CAPTURE = (1, TOKENS // STEPS)
REDIAL = {
    # seen, spent, align of the contract
    **{("same", False, align): Row(None, KEPT, downloads=False) for align in ALIGNS},
    **{("same", True, align): Row(None, KEPT, spent=True, downloads=False) for align in ALIGNS},
    **{("behind", False, align): Row(Align.SHIFT, KEPT) for align in ALIGNS},
    **{("forked", False, align): Row(Align.SHIFT, KEPT) for align in ALIGNS},
    ("behind", True, "overwrite"): Row(Align.OVERWRITE, RESET),
    ("behind", True, "blend"): Row(Align.BLEND, RESET),
    ("behind", True, "carry"): Row(Align.CARRY, SINCE_CAPTURE),
}


PUSHED = [(*row, pushed) for row in REDIAL for pushed in (False, True) if pushed or not row[1]]
"""A syncer holds only what was pushed."""


@pytest.mark.parametrize(("seen", "held", "align", "pushed"), PUSHED)
def test_first_value_after_a_redial_is_aligned_as_the_table_says(
    seen: str, held: bool, align: str, pushed: bool
) -> None:
    holdings = running(pushed=pushed)
    effects = holdings.welcomed(welcome(SEEN[seen], held=held))
    check(holdings, effects, SEEN[seen], REDIAL[seen, held, align], Contract(align=align, alpha=0.5))


def test_push_of_unknown_fate_that_the_syncer_does_not_hold_frees_its_anchor() -> None:
    holdings = running(pushed=True)
    assert holdings.spent() == {0}
    holdings.welcomed(welcome(OLD))
    anchor = holdings.anchors[0]
    assert (holdings.spent(), anchor.push, anchor.settled, anchor.pushed_steps) == (frozenset(), None, True, 0)


def test_push_of_unknown_fate_that_the_syncer_holds_stays_spent_and_is_settled() -> None:
    holdings = running(pushed=True)
    holdings.welcomed(welcome(OLD, held=True))
    anchor = holdings.anchors[0]
    assert (holdings.spent(), anchor.push, anchor.settled, anchor.pushed_steps) == (
        frozenset({0}),
        "p",
        True,
        STEPS - 1,
    )


def test_empty_push_that_the_syncer_holds_took_no_progress_away() -> None:
    holdings = running(pushed=True, empty=True)
    effects = holdings.welcomed(welcome(SEEN["behind"], held=True))
    check(holdings, effects, SEEN["behind"], Row(Align.SHIFT, KEPT), Contract(align="carry"))


def test_values_wanted_before_the_link_was_lost_are_not_wanted_after_it() -> None:
    holdings = running()
    holdings.welcomed(welcome(SEEN["behind"]))
    holdings.lost()
    assert holdings.wanted() == ()
    effects = holdings.welcomed(welcome(OLD))
    check(holdings, effects, OLD, Row(None, KEPT, downloads=False), Contract())


def test_syncer_of_a_new_run_that_took_this_islands_values_renames_its_anchors() -> None:
    holdings = running(pushed=True)
    assert holdings.welcomed(welcome(None, run="")) == []
    initial = ValueName(0, 0, "initial")
    assert holdings.provided(initial, "new run") == [NameAnchor(initial)]
    anchor = holdings.anchors[0]
    assert (anchor.name, counters(anchor), anchor.spent, holdings.run) == (initial, KEPT, False, "new run")


def test_islands_that_did_not_provide_the_initial_values_shift_onto_them() -> None:
    holdings = running(pushed=True)
    holdings.welcomed(welcome(None, run=""))
    initial = ValueName(0, 0, "initial")
    assert holdings.published(initial, "new run") == []
    check(holdings, [], initial, Row(Align.SHIFT, KEPT), Contract())


def test_fragments_cut_otherwise_by_the_syncer_are_a_cold_start_of_the_holdings() -> None:
    holdings = running()
    again = FragmentPlan(((1,), (0,)))
    effects = holdings.welcomed(welcome(OLD, plan=again))
    assert effects == [Bind(again)]
    check(holdings, effects, OLD, Row(Align.OVERWRITE, RESET), Contract(align="carry"))


# -- telling -----------------------------------------------------------------------------------------------------------


def summary(holdings: Holdings, **how: bool) -> list[str]:
    return [effect.text for effect in holdings.summarize(**how) if isinstance(effect, Log)]


@pytest.mark.parametrize(
    ("seen", "counts"),
    [
        ("same", "2 kept, 0 shifted, 0 overwritten, 0 missing"),
        ("behind", "1 kept, 1 shifted, 0 overwritten, 0 missing"),
    ],
)
def test_one_line_tells_what_became_of_the_fragments_once_all_are_met(seen: str, counts: str) -> None:
    holdings = Holdings(remembered(with_values=True))
    holdings.welcomed(welcome(SEEN[seen]))
    for name in holdings.wanted():
        assert summary(holdings) == []
        holdings.install(name, Contract())
    assert [summary(holdings), summary(holdings)] == [[f"global values of 2 fragments: {counts}"], []]


def test_a_wait_that_ends_early_tells_what_is_missing() -> None:
    holdings = Holdings()
    holdings.welcomed(welcome(OLD))
    holdings.install(OLD, Contract())
    line = "global values of 2 fragments: 0 kept, 0 shifted, 1 overwritten, 1 missing"
    assert summary(holdings, waiting_ended=True) == [line]


def test_nothing_is_told_of_values_that_a_lost_link_has_made_void() -> None:
    holdings = Holdings()
    holdings.welcomed(welcome(OLD))
    holdings.lost()
    assert summary(holdings, waiting_ended=True) == []
    holdings.welcomed(welcome(OLD))
    assert summary(holdings, waiting_ended=True) != []


def test_redialed_spent_fragment_is_counted_as_overwritten_when_it_is() -> None:
    holdings = running(pushed=True)
    holdings.welcomed(welcome(SEEN["behind"], held=True))
    assert summary(holdings) == ["global values of 2 fragments: 1 kept, 0 shifted, 1 overwritten, 0 missing"]


def test_final_cut_of_values_held_downloads_nothing_and_writes_all() -> None:
    holdings = running()
    holdings.welcomed(welcome(OLD))
    holdings.final_cut((OLD, OTHER))
    assert holdings.wanted() == ()
    assert holdings.left_to_write((OLD, OTHER)) == [Install(OLD, Align.ANCHOR), Install(OTHER, Align.ANCHOR)]


def test_a_resumed_anchor_is_spent_when_a_later_one_of_its_fragment_was_pushed() -> None:
    """Progress of the checkpoint was carried onto a later anchor and pushed from there: it must not be sent again."""
    later = ValueName(0, OLD.version + 1, "later")
    newest = ValueName(0, OLD.version + 2, "newest")
    holdings = Holdings(remembered(with_values=True))
    holdings.welcomed(msgspec.structs.replace(welcome(newest), held=(later,)))
    assert holdings.install(newest, Contract(align="carry")) == Install(newest, Align.OVERWRITE)
    assert counters(holdings.anchors[0]) == (0, 0)


def test_a_later_anchor_of_another_fragment_says_nothing() -> None:
    newest = ValueName(0, OLD.version + 2, "newest")
    holdings = Holdings(remembered(with_values=True))
    holdings.welcomed(msgspec.structs.replace(welcome(newest), held=(ValueName(1, OLD.version + 1, "later"),)))
    assert holdings.install(newest, Contract(align="carry")) == Install(newest, Align.SHIFT)


def test_a_resumed_anchor_is_spent_when_work_done_after_its_checkpoint_is_held() -> None:
    """The syncer was rewound, so that the anchor's number says nothing of what came after it."""
    newest = ValueName(0, OLD.version - 1, "of another life of the syncer")
    holdings = Holdings(remembered(with_values=True))
    holdings.welcomed(msgspec.structs.replace(welcome(newest), outrun=(0,)))
    assert holdings.install(newest, Contract()) == Install(newest, Align.OVERWRITE)


def test_work_done_later_does_not_spend_an_anchor_that_is_the_present_value() -> None:
    holdings = Holdings(remembered(with_values=True))
    holdings.welcomed(msgspec.structs.replace(welcome(OLD), outrun=(0,)))
    assert not holdings.anchors[0].spent and counters(holdings.anchors[0]) == (STEPS, TOKENS)


def test_work_done_later_says_nothing_to_an_island_that_runs() -> None:
    newest = ValueName(0, OLD.version + 1, "newest")
    holdings = Holdings()
    holdings.welcomed(welcome(OLD))
    holdings.install(OLD, Contract())
    holdings.anchors[0].count(5)
    holdings.welcomed(msgspec.structs.replace(welcome(newest), outrun=(0,)))
    assert holdings.install(newest, Contract()) == Install(newest, Align.SHIFT)
