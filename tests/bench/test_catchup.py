"""The bench of catching up at a tiny size: what it prints is well formed. Its figures are not looked at."""

from __future__ import annotations

import pytest

from tests.bench import catchup


@pytest.mark.net
def test_catchup_measures_rounds_memory_and_heartbeats_with_receivers_attached() -> None:
    small = catchup.CatchupOptions(
        mebibytes=8,
        fragment_mebibytes=2,
        slow_mb_per_s=2.0,
        joiners=2,
        joiner_mb_per_s=4.0,
        seconds=0.4,
        pairs=1,
        warm_s=0.2,
    )
    figures = {figure.name: figure for figure in catchup.run(small)}
    pace = "catchup_pace_slow", "catchup_pace_joiners"
    assert set(figures) == {*pace, "catchup_growth_slow", "catchup_memory", "catchup_heartbeat"}
    for figure in (figures[name] for name in pace):
        assert figure.value > 0 and figure.ceiling > 0, figure
        assert figure.ratio == pytest.approx(figure.value / figure.ceiling, rel=1e-2), figure
    assert figures["catchup_memory"].value > 8.0
    assert 0 < float(str(figures["catchup_pace_slow"].details["slow_mb_per_s"])) < 4.0
