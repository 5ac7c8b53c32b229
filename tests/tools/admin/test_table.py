"""What `swift-diloco status` shows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from swift_diloco.core.formats.status import decode
from swift_diloco.tools.admin.table import ROWS_MAX, table
from tests.core.formats.test_status import GOLDEN

FACTS = decode(GOLDEN)


def test_the_table_says_who_waits_for_whom() -> None:
    assert table(FACTS).splitlines() == [
        "training: waiting for island 1 to answer outer step 5 (fragment 0)",
        "outer step 4, versions 4 3",
        "  round 5 (fragment 0, attempt 1): gathering, 1 of 2 answers",
        "island  host    step  s/step",
        "0       a       40    1.50    done",
        "1       longer  38    ?       owes an answer, link down",
        "joining: 7",
        "pushed 1.23 MB, fetched 12 B; 0 bad and 3 stale messages",
    ]


def test_a_large_fleet_is_cut_short() -> None:
    members = tuple(replace(FACTS.members[0], island=i) for i in range(ROWS_MAX + 5))
    shown = table(replace(FACTS, members=members, joining=())).splitlines()
    assert "… and 5 more" in shown and len(shown) == 4 + ROWS_MAX + 2


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (45_600_000, "45.6 MB"),
        (2 * 10**9, "2 GB"),
        (7 * 10**15, "7e+03 TB"),
    ],
)
def test_sizes_have_three_digits_and_a_unit(count: int, text: str) -> None:
    assert f"fetched {text};" in table(replace(FACTS, bytes_fetched=count))


def test_run_before_its_first_values_says_so() -> None:
    assert table(replace(FACTS, versions=())).splitlines()[1] == "outer step 4, versions none yet"
