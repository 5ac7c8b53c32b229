"""Where anchors stand in the history, and which are held."""

from __future__ import annotations

import pytest

from swift_diloco.core.formats.messages import ValueName
from syncer.brain.memory.history import Standing, Values


def name(version: int, digest: str = "") -> ValueName:
    return ValueName(0, version, digest or f"d{version}")


def history(*versions: int) -> Values:
    made = Values([name(0)])
    for version in versions:
        made.publish(name(version))
    return made


@pytest.mark.parametrize(
    ("anchor", "standing"),
    [
        (name(4), Standing.SAME),
        (name(2), Standing.BEHIND),
        (name(0), Standing.BEHIND),
        (name(2, "other"), Standing.FORKED),
        (name(4, "other"), Standing.FORKED),
        (name(3), Standing.FORKED),
        (name(6), Standing.NEWER),
    ],
)
def test_an_anchor_stands_by_version_and_digest(anchor: ValueName, standing: Standing) -> None:
    assert history(2, 4).place(anchor).standing is standing


def test_lag_counts_versions_of_the_fragment_not_outer_steps() -> None:
    assert [history(10, 20, 30).place(name(v)).lag for v in (0, 10, 20, 30)] == [3, 2, 1, 0]


def test_a_version_never_goes_back() -> None:
    with pytest.raises(AssertionError):
        history(4).publish(name(4))


def test_old_names_are_forgotten_and_count_as_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("syncer.brain.memory.history.HISTORY_MAX", 2)
    kept = history(2, 4)
    assert [kept.place(name(v)).standing for v in (0, 2, 4)] == [Standing.FORKED, Standing.BEHIND, Standing.SAME]
    assert kept.place(name(2)).lag == 1
