"""The bench of a merge, at a tiny size."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swift_diloco.tools.bench import merge
from swift_diloco.tools.bench.lines import short


def test_merge_tells_its_median_beside_a_copy_of_the_same_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_seconds(work: Callable[[], object]) -> float:
        work()
        return 2.0

    monkeypatch.setattr(merge, "seconds", two_seconds)
    (figure,) = merge.run(merge.MergeOptions(elements=4099, repeats=1, threads=1))
    gb, copies = merge.STREAMS * 4 * 4096 / 1e9, merge.STREAMS // 2
    assert (figure.name, figure.unit, figure.better) == ("merge_rda4_nesterov", "GB/s", "higher")
    assert (figure.value, figure.ceiling, figure.ratio) == (short(gb / 2), short(gb / (2 * copies)), copies)
    assert figure.details == {"elements": 4096, "threads": 1, "best": short(gb / 2)}
