"""The bench of a link, at a tiny size."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from swift_diloco.core.errors import DilocoError
from swift_diloco.tools.bench import link
from swift_diloco.tools.bench.lines import median, short


@pytest.mark.net
def test_link_measures_pushes_and_fetches_beside_raw_messages() -> None:
    figures = link.run(link.LinkOptions(mebibytes=2, repeats=3))
    assert [figure.name for figure in figures] == ["link_push", "link_fetch"]
    for figure in figures:
        each, raw = (figure.details[name] for name in ("each", "raw"))
        assert isinstance(each, list) and isinstance(raw, list) and len(each) == len(raw) == 3
        assert figure.value == pytest.approx(median(each), rel=1e-3)
        assert figure.ceiling == pytest.approx(median(raw), rel=1e-3)
        assert figure.details["gigabytes"] == short(2 * 2**20 / 1e9)


class IdleRank:
    """A rank to which nothing happens."""

    has_cut = False
    notes = SimpleNamespace(captured=[], installed=[])

    def turn(self, seconds: float, *, trained: bool) -> None:
        assert not trained, "there is nothing to train from"


def test_round_that_does_not_come_is_told_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "ROUND_LIMIT_S", -1.0)
    with pytest.raises(DilocoError, match="round 3 took more than -1 s"):
        link.rounds_until(IdleRank(), 3)  # type: ignore[arg-type]
