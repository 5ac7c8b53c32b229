"""The bench of full-model syncs, at a tiny size."""

from __future__ import annotations

import pytest

from swift_diloco.core.errors import DilocoError
from swift_diloco.tools.bench import sync
from swift_diloco.tools.bench.lines import median, short


@pytest.mark.net
def test_sync_measures_every_sync_of_both_islands_but_the_warm_ones() -> None:
    (figure,) = sync.run(sync.SyncOptions(parameters=40_000, fragments=2, syncs=2, warm_syncs=1, step_ms=1.0))
    each = figure.details["each"]
    assert isinstance(each, list) and len(each) == sync.ISLANDS * 2
    assert (figure.name, figure.better) == ("sync_blocked", "lower")
    assert figure.value == pytest.approx(median(each), rel=1e-3)
    assert figure.ceiling == short(sync.AIM_S * 40_000 / sync.AIM_ELEMENTS)
    assert figure.value < float(str(figure.details["took_s"])), "a sync takes longer than its blocked part"


@pytest.mark.net
def test_island_that_fails_fails_the_bench() -> None:
    task = sync.Task("no address", 0, 100, 2, 1, 0.0)
    with pytest.raises(DilocoError, match=r"an island of the bench failed \(exit codes \[1\]\)"):
        sync.run_islands([task])
